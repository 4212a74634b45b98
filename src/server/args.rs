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

/// Arguments without a server.
#[cfg(any(test, fuzzing))]
pub(crate) struct Words(Vec<Box<[u8]>>);

#[cfg(any(test, fuzzing))]
impl Words {
    /// Arguments with these bytes.
    pub(crate) fn new(words: Vec<Box<[u8]>>) -> Self {
        // SAFETY: where there is no server, nothing else is in the table of functions, and no other function is put there.
        unsafe { redis_module::raw::RedisModule_StringPtrLen = Some(Self::bytes_of) };
        Self(words)
    }

    /// Calls `read` with the arguments.
    pub(crate) fn read<R>(&self, read: impl FnOnce(Args<'_>) -> R) -> R {
        let strings: Vec<_> = self.0.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect();
        read(Args(&strings))
    }

    unsafe extern "C" fn bytes_of(string: *const RedisModuleString, len: *mut usize) -> *const std::ffi::c_char {
        // SAFETY: every string without a server is one of `Words`, which outlives the arguments.
        unsafe {
            let word = &*string.cast::<Box<[u8]>>();
            *len = word.len();
            word.as_ptr().cast()
        }
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
