//! Who is compared. Only names and kinds are here; how each takes a lock is in `native` and in `clients/`.

/// One way to take a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// This module: ACQUIRE with BLOCK, then RELEASE.
    Lock,
    /// A list with one element, which BLPOP takes and LPUSH gives back: no lease, no token, no fence.
    Baton,
    RedisPy,
    PythonRedisLock,
    RedisSemaphore,
    Redlock,
    Rslock,
}

impl Contender {
    pub const ALL: [Self; 7] = [
        Self::Lock,
        Self::Baton,
        Self::RedisPy,
        Self::PythonRedisLock,
        Self::RedisSemaphore,
        Self::Redlock,
        Self::Rslock,
    ];

    /// The name on the command line, and what a driver knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Baton => "baton",
            Self::RedisPy => "redis-py",
            Self::PythonRedisLock => "python-redis-lock",
            Self::RedisSemaphore => "redis-semaphore",
            Self::Redlock => "redlock",
            Self::Rslock => "rslock",
        }
    }

    /// The name in tables and in the plot.
    pub fn title(self) -> &'static str {
        match self {
            Self::Lock => "this module",
            Self::Baton => "BLPOP/LPUSH baton",
            Self::RedisPy => "redis-py Lock",
            other => other.name(),
        }
    }

    /// Whether a driver in `clients/` runs it.
    pub fn is_foreign(self) -> bool {
        !matches!(self, Self::Lock | Self::Baton)
    }
}
