//! Bugs that are seeded on purpose, to see that the tests find them: `make track-record`, docs/track-record.md. Without
//! the feature `seeded-bugs` there is none, at no cost: every question is answered `false` when it is compiled.

#[cfg(all(feature = "seeded-bugs", not(debug_assertions)))]
compile_error!("seeded bugs are for tests: no release build may have them");

/// Whether the bug of this name is there.
#[cfg(not(feature = "seeded-bugs"))]
#[inline(always)]
pub(crate) const fn bug(_name: &str) -> bool {
    false
}

/// Whether the bug of this name is there: the one that `LOCK_SEEDED_BUG` names in this process's environment.
#[cfg(feature = "seeded-bugs")]
pub(crate) fn bug(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("LOCK_SEEDED_BUG").ok()).as_deref() == Some(name)
}
