//! `kura lab replay --policy`: what a tiering policy would do with a trace, without doing it. Moves are done at once and
//! take no time; what they cost, and how busy the disks are, is estimated by as many disks as the node has slow ones, each busy with
//! a request for as long as the engine assumes.

use crate::show::table;
use crate::size::Size;
use anyhow::{Context, Result, ensure};
use kura_tier::{Costs, Facts, Heat, Move, Placed, Policy, Settings, SlowLoad, Space, Tier, VolumeFacts, Wants};
use kura_trace::{Op, Request, TraceError};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Bytes of a disk in a millisecond.
const SLOW_BYTES_PER_MS: f64 = 150_000.0;
/// Moves that text shows.
const SHOWN: usize = 40;

/// What a policy would have done.
#[derive(Debug, Serialize)]
pub struct DryRun {
    policy: String,
    settings: Settings,
    volume_bytes: u64,
    fast_bytes: u64,
    requests: u64,
    /// The part of the requests that the fast tier would have served.
    fast_share: f64,
    up_bytes: u64,
    down_bytes: u64,
    moves: Vec<Dated>,
}

#[derive(Debug, Serialize)]
struct Dated {
    /// Seconds of the trace.
    at_s: f64,
    #[serde(flatten)]
    decided: Move,
    text: String,
}

/// How far a volume reaches, and by what.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Its size.
    pub end_bytes: u64,
    /// The request that ends there, counted from 1; none where the size was given.
    pub furthest_request: Option<u64>,
}

/// How large the fast tier is.
#[derive(Clone, Copy, Debug)]
pub enum FastTier {
    /// As the command says.
    Asked(u64),
    /// What the configuration's disks hold, of which a volume takes no more than it has.
    Configured(u64),
    /// The paper's 24 of 293 GB.
    Twelfth,
}

/// The volume as it would be.
pub struct Volume {
    bytes: u64,
    fast_bytes: u64,
    region_bytes: u64,
    regions: u32,
    /// Regions that the fast tier holds.
    room: u32,
    slow_disks: usize,
    /// On the fast tier, in order; dirty when written since they came up.
    placed: Vec<Placed>,
    heat: BTreeMap<u32, Heat>,
}

impl Volume {
    /// One of which nothing is on the fast tier yet. Refused: more regions than are told apart, and a fast tier of none.
    pub fn new(settings: &Settings, fast: FastTier, extent: Extent, slow_disks: usize) -> Result<Self> {
        let (region_bytes, Extent { end_bytes, furthest_request }) = (settings.region_bytes(), extent);
        let regions = u32::try_from(end_bytes.div_ceil(region_bytes)).ok().with_context(|| {
            let reaches = match furthest_request {
                Some(number) => format!("request {number} reaches to byte {end_bytes}"),
                None => format!("--size {}", Size(end_bytes)),
            };
            format!(
                "{reaches}, and a policy can handle 2^32 regions, of {} each: fit the trace into a smaller volume, such as \
                 by --fit compact, or give larger regions in the configuration",
                Size(region_bytes)
            )
        })?;
        let (fast_bytes, of) = match fast {
            FastTier::Asked(bytes) => (bytes, format!("--fast {}", Size(bytes))),
            FastTier::Configured(bytes) => (bytes.min(end_bytes), format!("fast disks that hold {}", Size(bytes))),
            FastTier::Twelfth => (end_bytes / 12, format!("a fast tier of a twelfth of {}", Size(end_bytes))),
        };
        ensure!(fast_bytes <= end_bytes, "{of}: the volume has {} in all", Size(end_bytes));
        let room = u32::try_from(fast_bytes / region_bytes).unwrap_or(u32::MAX);
        ensure!(
            room > 0,
            "{of}: the policy's regions have {}: give a larger --fast, or smaller regions in the configuration",
            Size(region_bytes)
        );
        let (placed, heat) = (Vec::new(), BTreeMap::new());
        Ok(Self { bytes: end_bytes, fast_bytes, region_bytes, regions, room, slow_disks, placed, heat })
    }

    fn regions_of(&self, request: &Request) -> std::ops::RangeInclusive<u32> {
        let region = |at: u64| (at / self.region_bytes) as u32;
        region(request.offset_bytes)..=region(request.end_bytes() - 1)
    }

    /// Counts a request; whether the fast tier serves it.
    fn serve(&mut self, request: &Request) -> bool {
        let mut fast = true;
        for region in self.regions_of(request) {
            let heat = self.heat.entry(region).or_insert(Heat { region, ..Heat::default() });
            *(if request.op == Op::Read { &mut heat.reads } else { &mut heat.writes }) += 1;
            match self.find(region) {
                Ok(at) => self.placed[at].dirty |= request.op == Op::Write,
                Err(_) => fast = false,
            }
        }
        fast
    }

    /// Where a region is among those on the fast tier, or where it would be.
    fn find(&self, region: u32) -> std::result::Result<usize, usize> {
        self.placed.binary_search_by_key(&region, |placed| placed.region)
    }

    fn decide(&mut self, policy: &mut dyn Policy, now_ns: u64, interval_ns: u64) -> Vec<Move> {
        let heat: Vec<Heat> = std::mem::take(&mut self.heat).into_values().collect();
        let on_disk = heat.iter().filter(|heat| self.find(heat.region).is_err());
        let slow_ios: u64 = on_disk.map(|heat| u64::from(heat.total())).sum();
        let (placed, all) = (&self.placed[..], 0..self.regions);
        let volume = VolumeFacts {
            volume: 0,
            regions: self.regions,
            mapped: std::slice::from_ref(&all),
            heat: &heat,
            placed,
            wants: Wants::default(),
        };
        let move_ms = Costs::SLOW_MS + self.region_bytes as f64 / SLOW_BYTES_PER_MS;
        let busy_ms = slow_ios as f64 * Costs::SLOW_MS / self.slow_disks.max(1) as f64;
        let utilisation = (busy_ms * 1e6 / interval_ns as f64).min(1.0);
        let decision = policy.decide(&Facts {
            now_ns,
            interval_ns,
            region_bytes: self.region_bytes,
            volumes: &[volume],
            fast: Space { total: self.room, free: self.room.saturating_sub(placed.len() as u32) },
            waiting: 0,
            slow: SlowLoad { utilisation, queue: utilisation },
            costs: Costs { up_ms: move_ms, down_ms: move_ms, slow_ms: Costs::SLOW_MS, fast_ms: Costs::FAST_MS },
        });
        decision.moves
    }

    /// Does a move; bytes copied up and down.
    fn make(&mut self, decided: &Move) -> (u64, u64) {
        let (mut up_bytes, mut down_bytes) = (0, 0);
        for region in decided.regions.clone() {
            match decided.to {
                Tier::Fast => {
                    if let Err(at) = self.find(region) {
                        self.placed.insert(at, Placed { region, dirty: false });
                        up_bytes += self.region_bytes;
                    }
                }
                Tier::Slow => {
                    let dirty = self.find(region).is_ok_and(|at| self.placed.remove(at).dirty);
                    down_bytes += u64::from(dirty || !decided.drop_clean) * self.region_bytes;
                }
            }
        }
        (up_bytes, down_bytes)
    }
}

/// Lets a policy decide over requests.
pub fn dry_run(
    settings: Settings,
    mut volume: Volume,
    requests: impl Iterator<Item = std::result::Result<Request, TraceError>>,
) -> Result<DryRun> {
    let interval_ns = settings.interval_ns();
    let mut policy = settings.policy()?;
    let mut run = DryRun {
        policy: policy.name().to_owned(),
        settings,
        volume_bytes: volume.bytes,
        fast_bytes: volume.fast_bytes,
        requests: 0,
        fast_share: 0.0,
        up_bytes: 0,
        down_bytes: 0,
        moves: Vec::new(),
    };
    let (mut end_ns, mut fast) = (interval_ns, 0_u64);
    for request in requests {
        let request = request?;
        while request.at_ns >= end_ns && end_ns < u64::MAX {
            let is_idle = volume.heat.is_empty();
            let moves = volume.decide(policy.as_mut(), end_ns, interval_ns);
            // Until the request it need not be asked: idle time changes nothing of what it decides.
            let rests = is_idle && moves.is_empty() && policy.rests();
            run.make(moves, end_ns, &mut volume);
            let begin_ns = if rests { request.at_ns / interval_ns * interval_ns } else { end_ns };
            end_ns = begin_ns.saturating_add(interval_ns);
        }
        if matches!(request.op, Op::Read | Op::Write) {
            run.requests += 1;
            fast += u64::from(volume.serve(&request));
        }
    }
    run.fast_share = fast as f64 / run.requests.max(1) as f64;
    Ok(run)
}

impl DryRun {
    /// Does what was decided, and keeps it.
    fn make(&mut self, moves: Vec<Move>, at_ns: u64, volume: &mut Volume) {
        for decided in moves {
            let (up_bytes, down_bytes) = volume.make(&decided);
            self.up_bytes += up_bytes;
            self.down_bytes += down_bytes;
            let text = decided.reason.to_string();
            self.moves.push(Dated { at_s: at_ns as f64 / 1e9, decided, text });
        }
    }
}

/// Why a policy may have decided nothing: what it wants before it moves anything.
fn wants(settings: &Settings) -> String {
    match settings {
        Settings::Worth(_) => {
            "worth moves a region whose requests save more time than its move takes: none had so many".to_owned()
        }
        Settings::OtfAst(it) => format!(
            "otf-ast decides nothing below {} requests/s, and moves what is a candidate in {} intervals of {} s in a row",
            it.floor_iops, it.streak, it.interval_s
        ),
        Settings::Static(it) => format!("static moves nothing until it was trained for {} s", it.training_s),
    }
}

/// A dry run for people.
pub fn text(run: &DryRun) -> String {
    let region_bytes = run.settings.region_bytes();
    let row = |dated: &Dated| {
        let Move { regions, to, .. } = &dated.decided;
        vec![
            format!("{:.0} s", dated.at_s),
            match to {
                Tier::Fast => "up".to_owned(),
                Tier::Slow => "down".to_owned(),
            },
            Size(u64::from(regions.start) * region_bytes).to_string(),
            Size(u64::from(regions.end - regions.start) * region_bytes).to_string(),
            dated.text.clone(),
        ]
    };
    if run.moves.is_empty() {
        return format!("nothing would move: {}\n\n{}", wants(&run.settings), totals(run));
    }
    let mut text = table(&["AT", "WHERE TO", "OFFSET", "SIZE", "WHY"], run.moves.iter().take(SHOWN).map(row));
    if let Some(more) = run.moves.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        // Writing to a string does not fail.
        let _ = write!(text, "\n... and {more} more moves: --json has all of them");
    }
    format!("{text}\n\n{}", totals(run))
}

fn totals(run: &DryRun) -> String {
    format!(
        "{}: {:.1} % of {} requests on a fast tier of {}, of a volume of {}; {} moves, {} copied up and {} down",
        run.policy,
        run.fast_share * 100.0,
        run.requests,
        Size(run.fast_bytes),
        Size(run.volume_bytes),
        run.moves.len(),
        Size(run.up_bytes),
        Size(run.down_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_tier::{Decision, Standing};

    /// Keeps how busy it was told that the disks are.
    struct Told(f64);

    impl Policy for Told {
        fn name(&self) -> &'static str {
            "told"
        }

        fn decide(&mut self, facts: &Facts<'_>) -> Decision {
            self.0 = facts.slow.utilisation;
            Decision::default()
        }

        fn standing(&self, _: u64, _: u32) -> Standing {
            unreachable!("nobody asks")
        }

        fn rests(&self) -> bool {
            false
        }

        fn memory_bytes(&self) -> usize {
            0
        }
    }

    #[test]
    fn as_many_disks_are_less_busy() {
        let utilisation = |slow_disks| {
            let extent = Extent { end_bytes: 1 << 30, furthest_request: None };
            let mut volume = Volume::new(&Settings::default(), FastTier::Twelfth, extent, slow_disks).unwrap();
            for at in 0..200 {
                let request =
                    Request { at_ns: 0, op: Op::Read, offset_bytes: at << 22, len_bytes: 4096, response_ns: 0 };
                volume.serve(&request);
            }
            let mut told = Told(0.0);
            volume.decide(&mut told, 1_000_000_000, 1_000_000_000);
            told.0
        };
        assert!((utilisation(4) - 200.0 * Costs::SLOW_MS / 4000.0).abs() < 1e-9, "{}", utilisation(4));
        assert!((utilisation(1) - 1.0).abs() < 1e-9, "{}", utilisation(1));
    }
}
