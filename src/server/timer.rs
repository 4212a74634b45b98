//! What wakes the pump. A timer of the server counts in whole ms, fires once in each at best, and goes by the wall
//! clock. So a timer of the kernel's wakes the server on time, by a clock that nobody can set; the pump itself then runs
//! from a timer of the server's that is due at once. The server runs those between commands only, while what wakes it is
//! also looked at in the middle of a long script.

use super::cell::MainThread;
use super::context::Context;
use super::{api, edge, Hooks};
use crate::core::time::Instant;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleTimerID};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::null_mut;

const MICROS_PER_SECOND: u64 = 1_000_000;
const NANOS_PER_MICRO: u64 = 1_000;
const READABLE: c_int = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;

/// When the pump runs next.
#[derive(Clone, Copy)]
enum Armed {
    /// Not before somebody asks for it.
    Never,
    /// When the kernel's timer ends, then.
    At(Instant),
    /// At the end of this turn of the event loop, by this timer of the server's.
    Soon(RedisModuleTimerID),
}

struct Timer {
    /// The kernel's timer.
    over: c_int,
    /// What wakes the server in its next turn: to set a timer that is over at once takes the kernel longer.
    now: c_int,
    armed: Armed,
    /// Whether the pump runs right now: the server fires no timer that is made meanwhile before the next ms.
    running: bool,
}

static TIMER: MainThread<Timer> = MainThread::new(Timer { over: -1, now: -1, armed: Armed::Never, running: false });

/// Makes the kernel's timer, and has the server look at it.
///
/// # Errors
/// In words: what failed.
pub(super) fn start<H: Hooks>() -> Result<(), String> {
    // SAFETY: each takes two numbers.
    let (over, now) = unsafe {
        (
            libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC),
            libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC),
        )
    };
    let made = if over < 0 || now < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    TIMER.with(|timer| (timer.over, timer.now) = (over, now));
    let looked_at = made.and_then(|()| [over, now].into_iter().try_for_each(look_at::<H>));
    looked_at.map_err(|why| {
        stop();
        format!("no timer: {why}")
    })
}

fn look_at<H: Hooks>(fd: c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open; no data is passed.
    let status = unsafe { api!(RedisModule_EventLoopAdd)(fd, READABLE, Some(woken::<H>), null_mut()) };
    if status == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Undoes [`start`]: the server refuses the module, and must not call it any more.
pub(super) fn stop() {
    let descriptors = TIMER.with(|timer| [timer.over, timer.now]);
    for fd in descriptors.into_iter().filter(|&fd| fd >= 0) {
        // SAFETY: opened by `start`, closed once.
        unsafe {
            api!(RedisModule_EventLoopDel)(fd, READABLE);
            libc::close(fd);
        }
    }
}

/// Sees to it that the pump runs at `at`, or earlier.
pub fn arm<H: Hooks>(context: &Context, now: Instant, at: Instant) {
    let soon = TIMER.with(|timer| match timer.armed {
        Armed::Soon(_) => false,
        Armed::At(armed) if armed <= at => false,
        _ if at <= now && !timer.running => true,
        _ => {
            timer.wake_in(at.micros().saturating_sub(now.micros()));
            timer.armed = Armed::At(at);
            false
        }
    });
    if soon {
        run_soon::<H>(context);
    }
}

/// Makes a timer of the server's anew that has not fired yet: if the wall clock was set back just after it was made, it
/// would not fire before the old time comes.
pub fn renew<H: Hooks>(context: &Context) {
    if let Armed::Soon(id) = TIMER.with(|timer| timer.armed) {
        // SAFETY: the timer was made by this module and has not fired: firing takes it out of `TIMER` first.
        unsafe { api!(RedisModule_StopTimer)(context.raw(), id, null_mut()) };
        run_soon::<H>(context);
    }
}

fn run_soon<H: Hooks>(context: &Context) {
    // SAFETY: the context is valid; no data is passed.
    let id = unsafe { api!(RedisModule_CreateTimer)(context.raw(), 0, Some(fired::<H>), null_mut()) };
    TIMER.with(|timer| timer.armed = Armed::Soon(id));
}

impl Timer {
    fn wake_in(&self, micros: u64) {
        if micros == 0 {
            let once = 1_u64.to_ne_bytes();
            // SAFETY: the buffer is as long as it is said to be.
            unsafe { libc::write(self.now, once.as_ptr().cast(), once.len()) };
            return;
        }
        let part = |number: u64| number.try_into().unwrap_or(0);
        let length = libc::timespec {
            tv_sec: part(micros / MICROS_PER_SECOND),
            tv_nsec: part(micros % MICROS_PER_SECOND * NANOS_PER_MICRO),
        };
        let once = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: length };
        // SAFETY: the timer is open, and `once` valid; the old setting is not asked for.
        unsafe { libc::timerfd_settime(self.over, 0, &once, null_mut()) };
    }
}

unsafe extern "C" fn woken<H: Hooks>(fd: c_int, _data: *mut c_void, _mask: c_int) {
    edge((), || {
        let mut times = [0_u8; size_of::<u64>()];
        // SAFETY: the buffer is as long as it is said to be.
        let read = unsafe { libc::read(fd, times.as_mut_ptr().cast(), times.len()) };
        // Nothing to read: a command that came in with it has set it anew.
        if read > 0 && !matches!(TIMER.with(|timer| timer.armed), Armed::Soon(_)) {
            run_soon::<H>(&Context::detached());
        }
    });
}

unsafe extern "C" fn fired<H: Hooks>(ctx: *mut RedisModuleCtx, _data: *mut c_void) {
    edge((), || {
        TIMER.with(|timer| (timer.armed, timer.running) = (Armed::Never, true));
        // SAFETY: the context is valid in this callback.
        H::pump(&unsafe { Context::new(ctx) });
    });
    edge((), || TIMER.with(|timer| timer.running = false));
}
