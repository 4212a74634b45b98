#!/usr/bin/env python3
"""`make track-record`: puts one bug at a time into a copy of the sources and runs the test that must find it.

A bug that its test does not find, or whose place in the code is gone, fails the run. The copy is in target/track-record;
the sources are never touched. Name bugs to run only those: track_record.py barging lost-wake-up-on-del
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "track-record"
COPY = TARGET / "sources"
CORE = "src/core/"
TABLE = CORE + "table/"

ONE = "one_server_keeps_every_promise"
RESTARTS = "a_server_that_syncs_always_keeps_every_promise_over_its_restarts"
FAILOVERS = "what_was_replicated_or_synced_is_kept_over_every_failover"

# Name, file, what stands there, what is put there, the test binary, the test.
BUGS = [
    ("early-expiry-by-1-ms", CORE + "lock.rs", "                hold.end <= now\n",
     "                hold.end <= now.after_ms(1)\n", "simulation", ONE),
    ("extend-revives", TABLE + "holding.rs", "(self.ms_left(hold, now) > 0).then_some((handle, hold))",
     "Some((handle, hold))", "lib", "an_exclusive_lock_is_what_the_model_says"),
    ("shared-and-exclusive-both-granted", TABLE + "serving.rs", "            _ => false,\n        }\n    }\n\n    /// With one more",
     "            (Self::Shared { .. }, Mode::Exclusive) => true,\n            _ => false,\n        }\n    }\n\n    /// With one more",
     "simulation", ONE),
    ("one-too-many", TABLE + "serving.rs", "count < smallest as usize", "count <= smallest as usize", "simulation", ONE),
    ("barging", TABLE + "holding.rs", "if admitted && first == self.lines.find(site.place, request.token.bytes()) {",
     "if admitted && (true || first == self.lines.find(site.place, request.token.bytes())) {", "simulation", ONE),
    ("last-in-first-out", CORE + "line.rs", "waiters.first_key_value().map", "waiters.last_key_value().map", "simulation", ONE),
    ("a-resend-loses-its-place", CORE + "line.rs", "joined: waiter.joined, order: waiter.order, ..again",
     "joined: waiter.joined, order: u64::MAX - waiter.order, ..again", "simulation", ONE),
    ("lost-wake-up-on-del", TABLE + "keyspace.rs",
     "            if self.lines.count(place) > 0 {\n                self.stirred.insert((place.db, place.key.into()));\n            }\n            self.unlinked",
     "            self.unlinked", "simulation", ONE),
    ("lost-wake-up-on-leaving", TABLE + "waiting.rs",
     "            self.counts.waits_ended_empty += 1;\n            self.stir_place(waiter.place());",
     "            self.counts.waits_ended_empty += 1;", "simulation", ONE),
    ("lost-wake-up-on-downgrade", TABLE + "turning.rs",
     "                    self.serve(Some(handle), place, now);\n", "", "simulation", ONE),
    ("upgrade-beside-another-holder", TABLE + "turning.rs", "lock.len() > 1", "lock.len() > 2", "simulation", ONE),
    ("a-repeat-shortens-the-lease", TABLE + "holding.rs", "if now.after(lease) > end && hold", "if hold", "simulation", ONE),
    ("a-cap-breaks-what-was-promised", TABLE + "turning.rs", "hold.granted.after_ms(ms).max(promised)",
     "hold.granted.after_ms(ms)", "simulation", ONE),
    ("a-cap-takes-what-was-shared", TABLE + "turning.rs", "hold.sure_since(since)", "hold.end_since(since)", "lib",
     "a_cap_takes_nothing_of_what_was_shared"),
    ("an-upgrade-not-fetched-is-no-hold", TABLE + "mod.rs", "hold.sure_since(serving.since)", "hold.end_since(serving.since)",
     "simulation", ONE),
    ("one-release-gives-all-holds-back", TABLE + "holding.rs", "fence.filter(|_| left > 0)", "fence.filter(|_| left > 9)",
     "simulation", ONE),
    ("revoke-after-a-resend-was-answered", TABLE + "waiting.rs",
     ".filter(|seen| seen.hold.delivery == Delivery::Untold)", ".filter(|_| true)", "lib",
     "a_grant_whose_token_was_answered_by_a_guard_is_not_taken_back"),
    ("undelivered-grant-kept", TABLE + "waiting.rs", "                hold.delivery = Delivery::Unfetched;\n                hold.end = now;\n",
     "", "lib", "table::"),
    ("a-lease-without-a-deadline", TABLE + "schedule.rs",
     "            change(lock);\n            self.schedule(handle);", "            change(lock);", "simulation", ONE),
    ("replicas-are-not-told-of-a-release", TABLE + "serving.rs", "        if others_stay {\n", "        if others_stay && false {\n",
     "simulation", ONE),
    ("a-change-forgets-that-it-is-the-only-holder", CORE + "codec.rs", "        (alone, FLAG_ALONE),\n",
     "        (false && alone, FLAG_ALONE),\n", "simulation", ONE),
    ("a-promotion-ends-leases-early", CORE + "hold.rs", "self.within_cap(self.end.max(serving.after(self.lease)))",
     "self.within_cap(if self.delivery == Delivery::Told { self.end } else { serving })", "simulation", FAILOVERS),
    ("no-leap-of-fences-at-promotion", TABLE + "mod.rs", "        self.fences.guard(now.ticks);\n",
     "        let _ = now.ticks;\n", "simulation", FAILOVERS),
    ("replicated-fences-are-not-learned", TABLE + "mod.rs",
     "            Change::Set { holder, alone } => {\n                self.fences.raise(holder.fence);",
     "            Change::Set { holder, alone } => {", "lib", "table::"),
    ("a-flush-lowers-the-highest-fence", TABLE + "keyspace.rs", "        self.stir(db);\n    }\n\n    /// Two databases",
     "        self.fences = Default::default();\n        self.stir(db);\n    }\n\n    /// Two databases", "simulation", FAILOVERS),
    ("a-fence-from-before-the-restart-is-repeated", TABLE + "holding.rs", "fence.get() <= serving.floor",
     "fence.get() <= 0 * serving.floor", "lib", "an_exclusive_lock_is_what_the_model_says"),
    ("a-guard-on-top-of-a-guard", CORE + "fence.rs", "if self.known <= ahead { ahead }", "if self.known <= wall.get() { ahead }",
     "simulation", "failovers_that_follow_each_other_keep_every_promise"),
    ("quorum-without-write-back", "tests/quorum_model/protocol.rs", "        if !self.rules.write_back {", "        if true {",
     "quorum_model", "fences_are_unique_and_rise_whenever_leases_end"),
    ("quorum-write-back-without-owner", "tests/quorum_model/protocol.rs",
     "_ if self.rules.owner_checked => return Leg::Nothing", "_ if false => return Leg::Nothing", "quorum_model",
     "fences_are_unique_and_rise_whenever_leases_end"),
    ("quorum-server-forgets-without-grace", "tests/quorum_model/protocol.rs", "if self.rules.grace { LEASE_TICKS }",
     "if false { LEASE_TICKS }", "quorum_model", "a_server_that_forgot_and_sits_a_lease_out_breaks_nothing"),
]


def fresh_copy():
    COPY.mkdir(parents=True, exist_ok=True)
    for name in ["src", "tests"]:
        # What was not changed keeps its time, so that it is not compiled again.
        for path in sorted((COPY / name).rglob("*"), reverse=True):
            if not (ROOT / path.relative_to(COPY)).exists():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in sorted((ROOT / name).rglob("*")):
            place = COPY / path.relative_to(ROOT)
            if path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            elif not place.exists() or place.read_bytes() != path.read_bytes():
                shutil.copyfile(path, place)
    for name in ["Cargo.toml", "Cargo.lock", "docs", "README.md", "benches"]:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, COPY / name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, COPY / name)


def run(binary, test):
    which = ["--lib"] if binary == "lib" else ["--test", binary]
    env = dict(os.environ, CARGO_TARGET_DIR=str(TARGET / "build"), RUST_BACKTRACE="0")
    build = ["cargo", "test", "--locked", "--no-run", *which]
    done = subprocess.run(build, cwd=COPY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        return done
    # A bug may also have a test go on for ever.
    command = ["timeout", "300", "cargo", "test", "--locked", *which, "--", test]
    return subprocess.run(command, cwd=COPY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def first_words(output):
    lines = output.splitlines()
    said = [after for line, after in zip(lines, lines[1:]) if "panicked at" in line]
    return (said or ["did not end"])[0][:110]


def try_bug(name, file, old, new, binary, test):
    path = COPY / file
    sound = path.read_text()
    if sound.count(old) != 1:
        return f"the place of this bug is there {sound.count(old)} times, not once"
    path.write_text(sound.replace(old, new))
    try:
        done = run(binary, test)
    finally:
        path.write_text(sound)
    if "could not compile" in done.stdout:
        return "does not compile:\n" + done.stdout
    if done.returncode == 0:
        return f"not found by {binary}: {test}"
    print(f"{name}: found by {binary}, {test}: {first_words(done.stdout)}", flush=True)
    return None


def main():
    wanted = [bug for bug in BUGS if not sys.argv[1:] or bug[0] in sys.argv[1:]]
    fresh_copy()
    for binary, test in sorted({(bug[4], bug[5]) for bug in wanted}):
        done = run(binary, test)
        if done.returncode != 0 or " 0 passed" in done.stdout:
            sys.exit(f"without any bug, {binary} {test} is not sound:\n{done.stdout}")
    missed = [f"{bug[0]}: {fault}" for bug in wanted if (fault := try_bug(*bug))]
    print(f"{len(wanted) - len(missed)} of {len(wanted)} bugs found")
    if missed:
        sys.exit("\n".join(missed))


main()
