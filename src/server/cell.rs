//! State of the server's main thread. The server runs one command, timer or event at a time under its global lock;
//! this cell makes that usable from safe code, and refuses a second borrow instead of allowing one.

use std::cell::RefCell;

/// A value that only the main thread touches.
pub struct MainThread<T>(RefCell<T>);

// SAFETY: the server calls every entry point that reaches such a cell on its main thread, or in a forked child that
// has only that thread. The one callback that may run elsewhere, freeing a value, touches none.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    /// A cell with this value.
    pub const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Lends the value to `body`, which must not call into the server: that can call back into the module.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        body(&mut self.0.borrow_mut())
    }
}
