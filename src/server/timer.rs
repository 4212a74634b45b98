//! The one timer of the module: it wakes the pump. The server keys timers by the wall clock, so after a step of that
//! clock the timer has to be made anew; [`reset`] does it.

use super::cell::MainThread;
use super::context::Context;
use super::{api, edge, Hooks};
use crate::core::time::Instant;
use redis_module::raw::{RedisModuleCtx, RedisModuleTimerID};
use std::ffi::c_void;
use std::ptr::null_mut;

#[derive(Clone, Copy)]
struct Armed {
    id: RedisModuleTimerID,
    at: Instant,
}

static ARMED: MainThread<Option<Armed>> = MainThread::new(None);

/// Sees to it that the pump runs at `at`, or earlier.
pub fn arm<H: Hooks>(context: &Context, now: Instant, at: Instant) {
    let armed = ARMED.with(|armed| *armed);
    if armed.is_some_and(|armed| armed.at <= at) {
        return;
    }
    stop(context);
    let ms = i64::try_from(now.ms_until_over(at)).unwrap_or(i64::MAX);
    // SAFETY: the context is valid; no data is passed.
    let id = unsafe { api!(RedisModule_CreateTimer)(context.raw(), ms, Some(fired::<H>), null_mut()) };
    ARMED.with(|armed| *armed = Some(Armed { id, at }));
}

/// Makes the timer anew: the wall clock was set, and the old one would fire by the old time.
pub fn reset<H: Hooks>(context: &Context, now: Instant) {
    if let Some(armed) = ARMED.with(|armed| *armed) {
        stop(context);
        arm::<H>(context, now, armed.at);
    }
}

fn stop(context: &Context) {
    if let Some(armed) = ARMED.with(Option::take) {
        // SAFETY: the timer was made by this module and has not fired: firing takes it out of `ARMED` first.
        unsafe { api!(RedisModule_StopTimer)(context.raw(), armed.id, null_mut()) };
    }
}

unsafe extern "C" fn fired<H: Hooks>(ctx: *mut RedisModuleCtx, _data: *mut c_void) {
    edge((), || {
        ARMED.with(Option::take);
        // SAFETY: the context is valid in this callback.
        H::pump(&unsafe { Context::new(ctx) });
    });
}
