//! The arguments of a command as borrowed bytes.

use super::api;
use redis_module::raw::RedisModuleString;
use std::ffi::c_int;
use std::slice::from_raw_parts;

/// The arguments of one command, its name at 0.
#[derive(Clone, Copy)]
pub struct Args<'a>(&'a [*mut RedisModuleString]);

impl<'a> Args<'a> {
    /// Takes the arguments as the server gives them.
    ///
    /// # Safety
    /// `argv` must point to `argc` strings that live for `'a`.
    pub(super) unsafe fn new(argv: *mut *mut RedisModuleString, argc: c_int) -> Self {
        // A module that is loaded without arguments gets a null vector.
        if argv.is_null() {
            return Self(&[]);
        }
        // SAFETY: promised by the caller.
        Self(unsafe { from_raw_parts(argv, usize::try_from(argc).unwrap_or(0)) })
    }

    /// Number of arguments, the command's name included.
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// The bytes of the argument at this position.
    pub fn get(self, position: usize) -> Option<&'a [u8]> {
        // SAFETY: the strings live for `'a`, by the promise made to `new`.
        self.0.get(position).map(|&string| unsafe { bytes_of(string) })
    }

    /// The arguments from this position on.
    pub fn from(self, position: usize) -> Self {
        Self(self.0.get(position..).unwrap_or_default())
    }

    /// The arguments as the server takes them: a vector of its strings and their number.
    pub(super) fn as_argv(self) -> (*mut *mut RedisModuleString, c_int) {
        (self.0.as_ptr().cast_mut(), self.0.len() as c_int)
    }

    /// The argument as the server's own string, to hand it back to the server.
    pub(super) fn raw(self, position: usize) -> Option<*mut RedisModuleString> {
        self.0.get(position).copied()
    }
}

/// The bytes of a server string.
///
/// # Safety
/// The string must be valid and stay so, unchanged, for `'a`.
pub(super) unsafe fn bytes_of<'a>(string: *const RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the server returns a pointer to `len` bytes that live as long as the string.
    unsafe {
        let start = api!(RedisModule_StringPtrLen)(string, &mut len);
        from_raw_parts(start.cast(), len)
    }
}
