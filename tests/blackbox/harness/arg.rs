//! What a test may write as a command argument, and the macros that turn a list of such things into a command.

/// Anything that has a form on the wire.
pub trait Arg {
    fn to_arg(&self) -> Vec<u8>;
}

impl<T: Arg + ?Sized> Arg for &T {
    fn to_arg(&self) -> Vec<u8> {
        (**self).to_arg()
    }
}

macro_rules! arg_is_its_bytes {
    ($($type:ty),+) => {
        $(impl Arg for $type {
            fn to_arg(&self) -> Vec<u8> {
                AsRef::<[u8]>::as_ref(self).to_vec()
            }
        })+
    };
}
arg_is_its_bytes!(str, String, [u8], Vec<u8>);

impl<const N: usize> Arg for [u8; N] {
    fn to_arg(&self) -> Vec<u8> {
        self.to_vec()
    }
}

macro_rules! arg_is_its_text {
    ($($type:ty),+) => {
        $(impl Arg for $type {
            fn to_arg(&self) -> Vec<u8> {
                self.to_string().into_bytes()
            }
        })+
    };
}
arg_is_its_text!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, f64, char);

/// A list of arguments, as `Client::pipeline` takes them: `args!["SET", key, 5]`.
macro_rules! args {
    ($($arg:expr),+ $(,)?) => {
        vec![$($crate::harness::Arg::to_arg(&$arg)),+]
    };
}
pub(crate) use args;

/// Sends a command and waits for its reply: `cmd!(client, "LOCK.ACQUIRE", key, "PX", 500)`.
macro_rules! cmd {
    ($client:expr, $($arg:expr),+ $(,)?) => {
        $client.cmd(&[$($crate::harness::Arg::to_arg(&$arg)),+])
    };
}
pub(crate) use cmd;

/// Sends a command without waiting: `send!(client, "LOCK.ACQUIRE", key, "TOKEN", token, "BLOCK", 0)`.
macro_rules! send {
    ($client:expr, $($arg:expr),+ $(,)?) => {
        $client.send(&[$($crate::harness::Arg::to_arg(&$arg)),+])
    };
}
pub(crate) use send;
