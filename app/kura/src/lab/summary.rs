//! A replay's summary for people.

use crate::show::table;
use crate::size::Size;
use kura_controller::Layout;
use kura_replay::{ControllerSummary, DiskSummary, Pace, PoolSummary, Prefill, Response, Summary, TierSummary};

/// What a time of nothing means.
const AT_ONCE: &str =
    "0 ns: held in the write buffer, or never written; the time of processor and network is not modelled\n";

/// The summary in under a screen for a dozen disks. `warn_at`: per cents of the pool's use that a server would warn of.
pub fn text(summary: &Summary, warn_at: &[u8]) -> String {
    let mut parts = vec![facts(summary), responses(summary), disks(&summary.disks), controllers(summary)];
    parts.extend(array(summary));
    parts.extend(summary.tier.as_ref().map(tier));
    parts.extend(full(&summary.pool, warn_at));
    parts.extend(verdicts(summary));
    parts.join("\n")
}

fn facts(summary: &Summary) -> String {
    let load = &summary.load;
    let pace = match summary.pace {
        Pace::Open => format!("at its times, at most {} under way", summary.in_flight_max),
        Pace::Closed { depth } => format!("{depth} at a time"),
    };
    let prefill = match summary.prefill {
        Prefill::None => "nothing written before".to_owned(),
        Prefill::Read | Prefill::All => format!("{} written before", Size(summary.prefill_bytes)),
    };
    let warm = match summary.warm_requests {
        0 => String::new(),
        warm => format!(", after {warm} to warm up, which are not counted"),
    };
    let counted = load.requests - summary.warm_requests;
    let layout = kura_admin::Layout::from(summary.volume.layout).name();
    let (size, allocated) = (Size(summary.volume.size_bytes), Size(summary.volume.allocated_bytes));
    let rows = [
        ("replayed", format!("{counted} requests {pace}, in {}{warm}", time(summary.elapsed_ns))),
        ("volume", format!("{size}, layout {layout}, {allocated} allocated, {prefill}")),
        (
            "throughput",
            format!(
                "{} requests/s, {} MB/s read, {} MB/s written",
                rate(summary.iops, 1),
                rate(summary.read_bytes_per_s.map(|bytes| bytes / 1e6), 2),
                rate(summary.written_bytes_per_s.map(|bytes| bytes / 1e6), 2)
            ),
        ),
    ];
    let lines = rows.map(|(name, value)| format!("{name:<12}{value}"));
    lines.join("\n") + "\n"
}

fn responses(summary: &Summary) -> String {
    let header = ["RESPONSE", "COUNT>", "MEAN>", "P50>", "P90>", "P95>", "P99>", "P99.9>", "MAX>"];
    let row = |name: &str, response: &Response| {
        let Response { count, mean_ns, p50_ns, p90_ns, p95_ns, p99_ns, p999_ns, max_ns } = *response;
        let times = [mean_ns, p50_ns, p90_ns, p95_ns, p99_ns, p999_ns, max_ns];
        [name.to_owned(), count.to_string()].into_iter().chain(times.map(time)).collect()
    };
    let kinds = [("read", &summary.read), ("write", &summary.write), ("other", &summary.other)];
    let rows = kinds.iter().filter_map(|(name, response)| response.as_ref().map(|response| row(name, response)));
    let mut text = table(&header, rows);
    if [&summary.read, &summary.write].into_iter().flatten().any(|response| response.p50_ns == 0) {
        text.push_str(AT_ONCE);
    }
    text
}

fn disks(disks: &[DiskSummary]) -> String {
    let header = ["DISK", "READS>", "WRITES>", "READ>", "WRITTEN>", "BUSY>", "MEAN QUEUE>", "MAX QUEUE>"];
    let row = |disk: &DiskSummary| {
        vec![
            disk.name.clone(),
            disk.reads.to_string(),
            disk.writes.to_string(),
            Size(disk.read_bytes).to_string(),
            Size(disk.written_bytes).to_string(),
            format!("{:.1}%", disk.busy * 100.0),
            format!("{:.3}", disk.queue_mean),
            disk.queue_max.to_string(),
        ]
    };
    table(&header, disks.iter().map(row))
}

fn controllers(summary: &Summary) -> String {
    let header = ["CONTROLLER", "READS>", "WRITES>", "READ>", "WRITTEN>", "BUFFERED>", "JOURNAL USED>", "JOURNAL>"];
    let row = |controller: &ControllerSummary| {
        vec![
            controller.id.to_string(),
            controller.reads.to_string(),
            controller.writes.to_string(),
            Size(controller.read_bytes).to_string(),
            Size(controller.written_bytes).to_string(),
            Size(controller.dirty_bytes).to_string(),
            Size(controller.journal_used_bytes).to_string(),
            Size(controller.journal_bytes).to_string(),
        ]
    };
    table(&header, summary.controllers.iter().map(row))
}

/// What a layout with parity wrote, where the volume has one.
fn array(summary: &Summary) -> Option<String> {
    let sum = |of: fn(&ControllerSummary) -> u64| Size(summary.controllers.iter().map(of).sum::<u64>() * 4096);
    let (hot, cooled, cold) = (sum(|one| one.hot_blocks), sum(|one| one.cooled_blocks), sum(|one| one.cold_blocks));
    matches!(summary.volume.layout, Layout::Raid5 | Layout::HotMirror | Layout::Floating).then(|| {
        format!(
            "{:<12}{hot} went to the hot area, {cooled} from there to stripes, {cold} straight to stripes\n",
            "array"
        )
    })
}

fn tier(tier: &TierSummary) -> String {
    let policy = serde_json::to_value(&tier.policy).ok();
    let policy = policy.as_ref().and_then(|policy| policy["policy"].as_str()).unwrap_or("none").to_owned();
    let share = |fast: u64, all: u64| format!("{fast} of {all} ({:.1}%)", fast as f64 * 100.0 / (all as f64).max(1.0));
    let mut rows = vec![
        ("fast tier", format!("policy {policy}, {} moves decided", tier.moves)),
        (
            "",
            format!(
                "holds {} of {}, {} newer than in the slow tier",
                Size(tier.valid_bytes),
                Size(tier.total_bytes),
                Size(tier.stale_bytes)
            ),
        ),
        ("", format!("served {} reads", share(tier.fast_reads, tier.reads))),
        ("", format!("took {} writes", share(tier.fast_writes, tier.writes))),
    ];
    rows.extend(tier.hindrance.iter().map(|why| ("", format!("nothing goes up: {why}"))));
    rows.into_iter().fold(String::new(), |text, (name, value)| text + &format!("{name:<12}{value}\n"))
}

/// What a server would warn of.
fn full(pool: &PoolSummary, warn_at: &[u8]) -> Option<String> {
    let percent = (u128::from(pool.used_bytes) * 100 / u128::from(pool.data_bytes.max(1))) as u64;
    let passed = warn_at.iter().rev().find(|at| u64::from(**at) <= percent)?;
    let (used, all) = (Size(pool.used_bytes), Size(pool.data_bytes));
    Some(format!("the pool is filling up: {percent}% ({used} of {all}) are used, {passed}% is passed\n"))
}

/// What went wrong, and what was checked.
fn verdicts(summary: &Summary) -> Option<String> {
    let mut lines: Vec<String> =
        summary.errors.iter().map(|(kind, count)| format!("{count} requests failed: {kind}")).collect();
    lines.extend(summary.first_error.iter().map(|error| format!("the first of them: {error}")));
    let given_up = |name| format!("{name} was given up: no answer for {} s", summary.node.disk_timeout_s);
    lines.extend(summary.failed_disks.iter().map(given_up));
    if let Some(verify) = &summary.verify {
        let checked = Size(verify.checked_bytes);
        lines.push(match &verify.first_mismatch {
            None => format!("{checked} of answers checked: all is as it was written"),
            Some(first) => format!("{checked} of answers checked: {} blocks are wrong; {first}", verify.mismatches),
        });
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// A time in the unit that suits it, to three digits or so.
fn time(ns: u64) -> String {
    let ns_f = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns_f / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns_f / 1e6),
        _ => format!("{:.2} s", ns_f / 1e9),
    }
}

/// A rate to `decimals`, or to three digits where it is low.
fn rate(per_s: Option<f64>, decimals: usize) -> String {
    let Some(per_s) = per_s else { return "-".to_owned() };
    let behind_point = if per_s > 0.0 { (2.0 - per_s.log10().floor()) as usize } else { 0 };
    format!("{per_s:.*}", behind_point.clamp(decimals, 9))
}

#[cfg(test)]
mod tests {
    use super::{rate, time};

    #[test]
    fn rates_tell_something_however_low() {
        let cases = [(1234.56, "1234.6"), (0.0204, "0.0204"), (3.4567, "3.46"), (0.0, "0.0"), (1e-12, "0.000000000")];
        for (per_s, text) in cases {
            assert_eq!(rate(Some(per_s), 1), text);
        }
        assert_eq!(rate(None, 1), "-");
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.5 us"),
            (13_330_000, "13.33 ms"),
            (7_200_000_000_000, "7200.00 s"),
        ];
        for (ns, text) in cases {
            assert_eq!(time(ns), text);
        }
    }
}
