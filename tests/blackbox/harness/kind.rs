//! The supported kinds of server, where their executables are, and where the module under test is. What cannot be found
//! is a failure that names the command which makes it, never a skipped test.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;
use std::{env, fs};

/// A server the module must load into and pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Redis70,
    Redis80,
    Valkey81,
    Valkey91,
}

impl Kind {
    /// Every supported kind, oldest API first.
    pub const ALL: [Self; 4] = [Self::Redis70, Self::Redis80, Self::Valkey81, Self::Valkey91];

    /// The directory of this kind in the server cache.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis70 => "redis-7.0",
            Self::Redis80 => "redis-8.0",
            Self::Valkey81 => "valkey-8.1",
            Self::Valkey91 => "valkey-9.1",
        }
    }

    pub fn is_valkey(self) -> bool {
        matches!(self, Self::Valkey81 | Self::Valkey91)
    }

    /// The executable, from `$REDIS_LOCK_SERVERS` or the cache that `make servers` fills.
    pub fn executable(self) -> PathBuf {
        let cache = env::var_os("REDIS_LOCK_SERVERS").map_or_else(|| target_dir().join("servers"), PathBuf::from);
        let executable = cache.join(self.name()).join("server");
        assert!(executable.exists(), "no {} server at {}: run `make servers`", self.name(), executable.display());
        executable
    }
}

/// The module under test: `$REDIS_LOCK_MODULE`, else the release build, else the debug build.
pub fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        if let Some(path) = env::var_os("REDIS_LOCK_MODULE") {
            let path = PathBuf::from(path);
            assert!(path.exists(), "REDIS_LOCK_MODULE: no {}", path.display());
            return path;
        }
        let build = |profile: &str| target_dir().join(profile).join("libredis_lock.so");
        let Some(path) = [build("release"), build("debug")].into_iter().find(|path| path.exists()) else {
            panic!("no module at {}: run `make build`", build("release").display());
        };
        assert_fresh(&path);
        path
    })
}

/// The directory cargo builds into, wherever `CARGO_TARGET_DIR` or `--target` put it: this executable is in
/// `<target>[/<triple>]/<profile>/deps`, and cargo marks `<target>` as a cache.
pub fn target_dir() -> &'static Path {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| {
        let executable = env::current_exe().expect("path of the test executable");
        let above: Vec<&Path> = executable.ancestors().skip(3).take(2).collect();
        above
            .iter()
            .find(|dir| dir.join("CACHEDIR.TAG").exists())
            .or(above.first())
            .expect("the test executable is in a cargo target directory")
            .to_path_buf()
    })
}

/// A test of yesterday's module proves nothing. Cargo lists the sources of each build beside it, in make's syntax.
fn assert_fresh(module: &Path) {
    let Ok(rule) = fs::read_to_string(module.with_extension("d")) else {
        return;
    };
    let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let built = modified(module).unwrap_or(SystemTime::UNIX_EPOCH);
    let sources = rule.split_once(": ").map_or("", |(_, sources)| sources);
    for source in sources.replace("\\ ", "\0").split_whitespace() {
        let source = PathBuf::from(source.replace('\0', " "));
        assert!(
            modified(&source).is_none_or(|changed| changed <= built),
            "{} is newer than {}: run `make build`",
            source.display(),
            module.display()
        );
    }
}
