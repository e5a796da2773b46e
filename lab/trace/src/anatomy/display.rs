//! The anatomy as a report to be read at a glance.

use std::fmt;

use super::{Anatomy, Percentiles};

impl fmt::Display for Anatomy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, text: String| writeln!(f, "{name:<15}{text}");
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        line("requests", count(self.requests))?;
        line("span", duration(self.span_ns as f64))?;
        line("reads", format!("{}, {} of the bytes", percent(self.read_share), percent(self.read_bytes_share)))?;
        line("discards", format!("{}, flushes {}", count(self.discards), count(self.flushes)))?;
        line("volume", format!("{} read, {} written", bytes(self.read_bytes), bytes(self.written_bytes)))?;
        let rates = &self.rates;
        line("rate, mean", format!("{:.2}/s", rates.mean_per_s))?;
        let peaks = [(rates.peak_second_per_s, "a second"), (rates.peak_minute_per_s, "a minute")];
        let peaks = peaks.into_iter().filter_map(|(rate, time)| Some(format!("{:.1}/s for {time}", rate?)));
        let peaks: Vec<String> = peaks.collect();
        if !peaks.is_empty() {
            line("rate, peak", peaks.join(", "))?;
        }
        if let Some(share) = rates.busiest_three_10min_share {
            line("bursts", format!("{} in the busiest three 10 minutes", percent(share)))?;
        }
        if let Some(gaps) = &self.interarrival_ns {
            let gaps = spread(gaps, duration);
            line("inter-arrival", format!("{gaps}, deviation {:.1} x mean", self.interarrival_cv))?;
        }
        for (name, sizes) in [("read size", &self.read_size_bytes), ("write size", &self.write_size_bytes)] {
            if let Some(sizes) = sizes {
                line(name, spread(sizes, |size| bytes(size as u64)))?;
            }
        }
        let (sectors, pages) = (percent(self.aligned_512_share), percent(self.aligned_4096_share));
        line("aligned", format!("{sectors} to 512 bytes, {pages} to 4 KiB"))?;
        line("sequential", percent(self.sequential_share))?;
        line("address span", bytes(self.address_span_bytes))?;
        let part = percent(super::share(self.footprint_bytes, self.capacity_bytes));
        let block = bytes(self.footprint_block_bytes);
        line("footprint", format!("{} in blocks of {block}, {part} of the capacity", bytes(self.footprint_bytes)))?;
        for regions in &self.concentration {
            let Some(one) = regions.busiest_1_percent_share.map(percent) else { continue };
            let ten = percent(regions.busiest_10_percent_share);
            let name = format!("by {}", bytes(regions.region_bytes));
            let of = format!("{} of {} regions touched", count(regions.touched), count(regions.regions));
            line(&name, format!("{one} in the busiest 1 %, {ten} in 10 %; {of}"))?;
        }
        let after = super::share(self.read_to_write.writes_after_read, self.read_to_write.writes);
        let of = count(self.read_to_write.accesses);
        line("read-modify", format!("{} of writes to a block that was read before, in {of} accesses", percent(after)))?;
        if let Some(responses) = &self.response_ns {
            line("response", spread(responses, duration))?;
        }
        Ok(())
    }
}

fn spread(values: &Percentiles, unit: impl Fn(f64) -> String) -> String {
    let [p50, p90, p99, max] = [values.p50, values.p90, values.p99, values.max].map(|value| unit(value as f64));
    format!("mean {}, 50 % {p50}, 90 % {p90}, 99 % {p99}, most {max}", unit(values.mean))
}

/// Digits in threes.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let threes: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|three| str::from_utf8(three).ok()).collect();
    threes.join(",")
}

fn bytes(number: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let scale = (number.max(1).ilog2() / 10) as usize;
    let amount = number as f64 / (1u64 << (10 * scale)) as f64;
    let whole = number.is_multiple_of(1 << (10 * scale));
    if whole { format!("{amount} {}", UNITS[scale]) } else { format!("{amount:.1} {}", UNITS[scale]) }
}

fn duration(ns: f64) -> String {
    const UNITS: [(f64, &str); 7] =
        [(86400e9, "days"), (3600e9, "h"), (60e9, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")];
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| ns >= *unit).unwrap_or((1.0, "ns"));
    format!("{:.1} {name}", ns / unit)
}
