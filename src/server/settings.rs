//! Numeric configs: `CONFIG SET lock.x`, a line of redis.conf, or an argument of loadmodule.

use super::context::Context;
use super::register::text;
use super::{api, edge, Hooks};
use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};
use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// One numeric config.
#[derive(Debug)]
pub struct Setting {
    /// Name without the module's prefix.
    pub name: &'static str,
    /// Smallest value.
    pub min: i64,
    /// Largest value.
    pub max: i64,
    /// Current value.
    pub value: AtomicI64,
    /// Whether the server asked for the value or set it, while it reads redis.conf's.
    taken: AtomicBool,
}

impl Setting {
    /// A config of this name, with its default and bounds.
    pub const fn new(name: &'static str, default: i64, min: i64, max: i64) -> Self {
        Self { name, min, max, value: AtomicI64::new(default), taken: AtomicBool::new(false) }
    }

    /// The current value.
    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    fn bounds(&self) -> String {
        format!("{} takes a number from {} to {}", self.name, self.min, self.max)
    }
}

/// Takes arguments of loadmodule, `name value` pairs with or without the prefix, as the configs' defaults: a line
/// `lock.x` of redis.conf still wins.
///
/// # Errors
/// In words: what is wrong with which argument.
pub(super) fn take_arguments(settings: &[&Setting], args: &[&[u8]]) -> Result<(), String> {
    for (index, pair) in args.chunks(2).enumerate() {
        let position = 2 * index + 1;
        let name = pair.first().map(|name| String::from_utf8_lossy(name).to_ascii_lowercase()).unwrap_or_default();
        let short = name.strip_prefix("lock.").unwrap_or(&name);
        let known = || settings.iter().map(|setting| setting.name).collect::<Vec<_>>().join(", ");
        let Some(setting) = settings.iter().find(|setting| setting.name == short) else {
            return Err(format!("argument {position} of loadmodule is none of {}", known()));
        };
        let value = pair.get(1).and_then(|value| std::str::from_utf8(value).ok()?.parse::<i64>().ok());
        match value.filter(|value| (setting.min..=setting.max).contains(value)) {
            Some(value) => setting.value.store(value, Ordering::Relaxed),
            None => return Err(format!("{} (argument {} of loadmodule)", setting.bounds(), position + 1)),
        }
    }
    Ok(())
}

/// Registers the configs and reads redis.conf's values; an error names the one that was refused.
///
/// # Safety
/// `ctx` must be the context of OnLoad.
pub(super) unsafe fn register<H: Hooks>(ctx: *mut RedisModuleCtx, settings: &[&'static Setting]) -> Result<(), String> {
    for setting in settings {
        // SAFETY: the setting is static, so the server may keep the pointer to it; it copies the name.
        let status = unsafe {
            api!(RedisModule_RegisterNumericConfig)(
                ctx,
                text(setting.name).as_ptr(),
                setting.get(),
                raw::REDISMODULE_CONFIG_DEFAULT,
                setting.min,
                setting.max,
                Some(get),
                Some(set),
                Some(changed::<H>),
                std::ptr::from_ref::<Setting>(setting).cast_mut().cast(),
            )
        };
        if status != raw::REDISMODULE_OK as c_int {
            return Err(format!("the server refused the config lock.{}", setting.name));
        }
    }
    for setting in settings {
        setting.taken.store(false, Ordering::Relaxed);
    }
    // SAFETY: the context is valid.
    if unsafe { api!(RedisModule_LoadConfigs)(ctx) } != raw::REDISMODULE_OK as c_int {
        // The server goes through them in this order, asks for the old value of each whose new one is right, and stops.
        let refused = settings.iter().find(|setting| !setting.taken.load(Ordering::Relaxed));
        return Err(refused.map_or_else(
            || "a config lock.* was refused".to_owned(),
            |setting| format!("lock.{} (a line of the configuration)", setting.bounds()),
        ));
    }
    Ok(())
}

unsafe extern "C" fn get(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    edge(0, || {
        // SAFETY: the pointer is the static setting it was registered with.
        let setting = unsafe { &*setting.cast::<Setting>() };
        setting.taken.store(true, Ordering::Relaxed);
        setting.get()
    })
}

unsafe extern "C" fn set(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut RedisModuleString,
) -> c_int {
    edge(raw::REDISMODULE_ERR as c_int, || {
        // SAFETY: as above. The server checked the bounds.
        let setting = unsafe { &*setting.cast::<Setting>() };
        setting.taken.store(true, Ordering::Relaxed);
        setting.value.store(value, Ordering::Relaxed);
        raw::REDISMODULE_OK as c_int
    })
}

unsafe extern "C" fn changed<H: Hooks>(
    ctx: *mut RedisModuleCtx,
    _setting: *mut c_void,
    _error: *mut *mut RedisModuleString,
) -> c_int {
    // SAFETY: the context is valid in this callback.
    edge((), || H::settings_changed(&unsafe { Context::new(ctx) }));
    raw::REDISMODULE_OK as c_int
}
