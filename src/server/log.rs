//! Lines in the server's log. The text is an argument of a fixed format, so nothing in it is ever interpreted.

use super::api;
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

/// Writes a line of level warning.
pub fn warning(text: &str) {
    write(c"warning", text);
}

/// Writes a line of level notice.
pub fn notice(text: &str) {
    write(c"notice", text);
}

fn write(level: &CStr, text: &str) {
    let Ok(text) = CString::new(text.replace('\0', " ")) else { return };
    // SAFETY: a null context is allowed for logging; the format takes exactly the one C string it is given.
    unsafe { api!(RedisModule_Log)(null_mut(), level.as_ptr(), c"%s".as_ptr(), text.as_ptr()) };
}
