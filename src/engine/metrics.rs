//! The lines of INFO `lock`.

use super::with;
use crate::server::info::InfoWriter;

/// Writes every line: the state first, then totals since the start.
pub fn write(writer: &mut InfoWriter) {
    let (held, fence, counts) =
        with(|state| (state.table.held() as u64, state.table.fences().highest(), *state.table.counts()));
    for (name, value) in [
        ("held", held),
        ("waiting", 0),
        ("fence", fence),
        ("granted", counts.granted),
        ("repeated", counts.repeated),
        ("refused", counts.refused),
        ("released", counts.released),
        ("leases_ended", counts.leases_ended),
        ("late_releases_free", counts.late_free),
        ("late_releases_taken", counts.late_taken),
        ("expires_undone", counts.expires_undone),
        ("evictions_undone", counts.evictions_undone),
    ] {
        writer.field(name, value);
    }
}
