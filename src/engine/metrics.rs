//! The lines of INFO `lock`.

use super::with;
use crate::server::clock;
use crate::server::info::InfoWriter;

/// Writes every line: the state first, then totals since the start.
pub fn write(writer: &mut InfoWriter) {
    let now = clock::instant();
    let (held, waiting, polling, fence, grace_left_ms, counts) = with(|state| {
        let (table, lines) = (&state.table, state.table.lines());
        let grace_left_ms = table.grace_left_ms(now);
        (table.held(), lines.blocked(), lines.polled(), table.fences().highest(), grace_left_ms, *table.counts())
    });
    for (name, value) in [
        ("held", held as u64),
        ("waiting", waiting as u64),
        ("polling", polling as u64),
        ("fence", fence),
        ("grace_left_ms", grace_left_ms),
        ("granted", counts.granted),
        ("repeated", counts.repeated),
        ("refused", counts.refused),
        ("released", counts.released),
        ("leases_ended", counts.leases_ended),
        ("late_releases_free", counts.late_free),
        ("late_releases_taken", counts.late_taken),
        ("waited", counts.waited),
        ("waits_ended_empty", counts.waits_ended_empty),
        ("handed_over", counts.handed_over),
        ("withdrawn", counts.withdrawn),
        ("deadlocks", counts.deadlocks),
        ("grants_taken_back", counts.taken_back),
        ("guard_refused", counts.guard_refused),
        ("wait_ms_sum", counts.wait_ms_sum),
        ("wait_ms_max", counts.wait_ms_max),
        ("expires_undone", counts.expires_undone),
        ("evictions_undone", counts.evictions_undone),
    ] {
        writer.field(name, value);
    }
}
