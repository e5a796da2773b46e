//! A replay from its beginning to its summary.

use crate::error::Error;
use crate::node::{Node, NodeSpec};
use crate::options::{Options, Pace, Prefill};
use crate::pace::{OpenLoop, closed_loop};
use crate::prefill;
use crate::run::Run;
use crate::summary::{ControllerSummary, DiskSummary, PoolSummary, Summary, TierSummary, VolumeSummary};
use crate::survey::Survey;
use kura_block::BLOCK_BYTES;
use kura_controller::{Controller, ControllerInfo, DiskInfo, DiskState, Hits};
use kura_trace::Request;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Extents of a volume: its map takes eight bytes for each, touched or not.
const EXTENTS_LIMIT: u64 = 1 << 24;

/// What a replay is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Writing what will be read; counts bytes.
    Prefill,
    /// The trace; counts requests.
    Replay,
    /// Reading everything back; counts bytes.
    ReadBack,
}

/// How far a replay has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is at.
    pub phase: Phase,
    /// Done of that.
    pub done: u64,
    /// All of that.
    pub total: u64,
    /// Virtual time since the phase began.
    pub elapsed: Duration,
}

/// Tells progress, not too often.
pub(crate) struct Reporter<'a> {
    tell: RefCell<&'a mut dyn FnMut(Progress)>,
    run: Rc<Run>,
    phase: Cell<Phase>,
    since: Cell<Duration>,
    done: Cell<u64>,
    total: Cell<u64>,
    told: Cell<u64>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(run: &Rc<Run>, tell: &'a mut dyn FnMut(Progress)) -> Self {
        Self {
            tell: RefCell::new(tell),
            run: Rc::clone(run),
            phase: Cell::new(Phase::Prefill),
            since: Cell::default(),
            done: Cell::new(0),
            total: Cell::new(0),
            told: Cell::new(0),
        }
    }

    pub(crate) fn begin(&self, phase: Phase, total: u64) {
        self.phase.set(phase);
        self.since.set(self.run.now());
        self.total.set(total);
        self.done.set(0);
        self.tell();
    }

    pub(crate) fn advance(&self, done: u64) {
        self.done.set(self.done.get() + done);
        // Some five hundred times a phase.
        if self.done.get() - self.told.get() > self.total.get() / 512 {
            self.tell();
        }
    }

    fn tell(&self) {
        self.told.set(self.done.get());
        let elapsed = self.run.now().saturating_sub(self.since.get());
        let (phase, done, total) = (self.phase.get(), self.done.get(), self.total.get());
        (self.tell.borrow_mut())(Progress { phase, done, total, elapsed });
    }
}

/// Replays `requests`, of which `survey` is the survey, on a node of `spec`. `progress` is told how far it is.
pub fn replay<E>(
    spec: &NodeSpec,
    options: &Options,
    survey: &Survey,
    requests: impl Iterator<Item = Result<Request, E>>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary, Error>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let end_bytes = options.size_bytes.unwrap_or(survey.end_bytes.max(1));
    let most_bytes = spec.extent_bytes.saturating_mul(EXTENTS_LIMIT);
    if end_bytes > most_bytes {
        let request = options.size_bytes.is_none().then_some(survey.furthest_request);
        return Err(Error::TooFar { request, end_bytes, most_bytes });
    }
    if survey.last_ns() < options.warm_ns {
        let [last, warm] = [survey.last_ns(), options.warm_ns].map(Duration::from_nanos);
        return Err(Error::AllWarm { last, warm });
    }
    let node = spec.start(options, end_bytes.next_multiple_of(BLOCK_BYTES as u64))?;
    check_room(&node, spec, options, survey)?;
    drive(&node, spec, options, survey, requests, progress)
}

/// Replays on a node that runs.
pub(crate) fn drive<E>(
    node: &Node,
    spec: &NodeSpec,
    options: &Options,
    survey: &Survey,
    requests: impl Iterator<Item = Result<Request, E>>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary, Error>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let run = Run::new(Rc::clone(&node.volume), Rc::clone(&node.runtime), options);
    let reporter = Reporter::new(&run, progress);
    let prefill_bytes = node.sim.block_on(prefill::fill(node, &run, survey, options.prefill, &reporter))?;
    // What fills the volume is no use of it.
    node.sim.block_on(node.pool.set_tier(spec.tier()))?;
    reporter.begin(Phase::Replay, survey.load.requests);
    let (begin, warm_requests) = (OnceCell::new(), Cell::new(0));
    let tell = |request: &Request| {
        reporter.advance(1);
        if request.at_ns < options.warm_ns {
            warm_requests.set(warm_requests.get() + 1);
        } else {
            begin.get_or_init(|| Begin::of(node, &run));
        }
    };
    node.sim.block_on(async {
        match options.pace {
            Pace::Open => {
                let goes_on = |request: &Request| {
                    tell(request);
                    true
                };
                OpenLoop::new(requests, options.in_flight_limit).play(&run, goes_on).await?;
                run.finished().await;
                Ok(())
            }
            Pace::Closed { depth } => closed_loop(requests, depth, &run, tell).await,
        }
    })?;
    let begin = begin.get_or_init(|| Begin::of(node, &run));
    let mut summary = summarize(spec, options, survey, node, &run, run.last_answer().saturating_sub(begin.at));
    (summary.prefill_bytes, summary.warm_requests) = (prefill_bytes, warm_requests.get());
    let controllers = node.controllers.iter().zip(&begin.controllers);
    summary.controllers = controllers.map(|(now, before)| of_controller(now, before)).collect();
    summary.failed_disks = node.sim.block_on(failed_disks(node))?;
    (summary.pool, summary.tier) = node.sim.block_on(at_the_end(node, spec, begin))?;
    if let Some(ledger) = &run.ledger {
        node.sim.block_on(read_back(node, &run, &reporter))?;
        summary.verify = Some(ledger.borrow().found());
    }
    Ok(summary)
}

/// How things stood when the first request that counts was due.
struct Begin {
    at: Duration,
    controllers: Vec<ControllerInfo>,
    tier: TierUse,
}

impl Begin {
    /// Now, from when on all is counted.
    fn of(node: &Node, run: &Run) -> Self {
        node.disks.borrow().iter().for_each(kura_sim::SimDisk::reset_counters);
        run.tally.borrow_mut().begin_counting();
        let controllers = node.controllers.iter().map(|controller| controller.info()).collect();
        Self { at: run.now(), controllers, tier: tier_use(node) }
    }
}

/// Moves decided, and what was served.
type TierUse = (u64, Hits);

fn tier_use(node: &Node) -> TierUse {
    let tiers = node.controllers.iter().map(|controller| controller.store().tier());
    tiers.fold(TierUse::default(), |(moves, hits), tier| (moves + tier.moves, hits + tier.hits))
}

/// Refuses a trace that will not fit.
fn check_room(node: &Node, spec: &NodeSpec, options: &Options, survey: &Survey) -> Result<(), Error> {
    let group_bytes = node.group_bytes()?;
    let needed_bytes = match options.prefill {
        Prefill::All => node.volume_bytes.next_multiple_of(group_bytes),
        prefill => survey.groups_bytes(group_bytes, prefill == Prefill::Read),
    };
    let room_bytes = spec.room_on(node, options.layout)?;
    if needed_bytes > room_bytes { Err(Error::NoRoom { needed_bytes, room_bytes }) } else { Ok(()) }
}

/// Reads everything that was ever written, from the disks.
async fn read_back(node: &Node, run: &Run, reporter: &Reporter<'_>) -> kura_block::Result<()> {
    node.settle().await?;
    let ranges = run.ledger.as_ref().map_or_else(Vec::new, |ledger| ledger.borrow().ranges(1 << 20));
    reporter.begin(Phase::ReadBack, ranges.iter().map(|range| range.end - range.start).sum());
    for range in ranges {
        let len_bytes = range.end - range.start;
        if let (Err(error), Some(ledger)) = (run.read(range.start, len_bytes as usize).await, &run.ledger) {
            ledger.borrow_mut().lost(range, &error);
        }
        reporter.advance(len_bytes);
    }
    Ok(())
}

fn summarize(
    spec: &NodeSpec,
    options: &Options,
    survey: &Survey,
    node: &Node,
    run: &Run,
    elapsed: Duration,
) -> Summary {
    let tally = run.tally.borrow();
    let per_s = |amount: u64| (!elapsed.is_zero()).then(|| amount as f64 / elapsed.as_secs_f64());
    let allocated = node.controllers.iter().flat_map(|controller| controller.volumes());
    Summary {
        seed: options.seed,
        node: spec.clone(),
        volume: VolumeSummary {
            size_bytes: node.volume_bytes,
            layout: options.layout,
            allocated_bytes: allocated.map(|volume| volume.allocated_bytes).sum(),
        },
        load: survey.load.clone(),
        pace: options.pace,
        prefill: options.prefill,
        prefill_bytes: 0,
        warm_ns: options.warm_ns,
        warm_requests: 0,
        elapsed_ns: elapsed.as_nanos() as u64,
        iops: per_s(tally.reads.count() + tally.writes.count() + tally.others.count()),
        read_bytes_per_s: per_s(tally.reads.bytes()),
        written_bytes_per_s: per_s(tally.writes.bytes()),
        read: tally.reads.response(),
        write: tally.writes.response(),
        other: tally.others.response(),
        in_flight_max: tally.in_flight_max,
        errors: tally.errors.clone(),
        first_error: tally.first_error.clone(),
        failed_disks: Vec::new(),
        disks: node.disks.borrow().iter().map(|disk| of_disk(disk, elapsed)).collect(),
        controllers: Vec::new(),
        pool: PoolSummary::default(),
        tier: None,
        verify: None,
        digest: format!("{:016x}", node.sim.digest()),
    }
}

pub(crate) fn of_disk(disk: &kura_sim::SimDisk, elapsed: Duration) -> DiskSummary {
    let counters = disk.counters();
    let share = |ns: u64| ns as f64 / (elapsed.as_nanos() as f64).max(1.0);
    DiskSummary {
        name: disk.name().to_owned(),
        reads: counters.reads,
        writes: counters.writes,
        flushes: counters.flushes,
        discards: counters.discards,
        read_bytes: counters.read_bytes,
        written_bytes: counters.written_bytes,
        errors: counters.errors,
        busy: share(counters.busy_ns),
        // Little's law: time spent there, summed over the operations.
        queue_mean: share(counters.wait_ns + counters.service_ns),
        queue_max: counters.queue_max,
    }
}

/// Names of the disks that were given up. Where nothing was written since, the pool has not put such a disk out of service yet.
async fn failed_disks(node: &Node) -> kura_block::Result<Vec<String>> {
    let disks = node.pool.pool().await?.disks.into_iter();
    let is_failed = |disk: &DiskInfo| disk.state == DiskState::Failed || disk.io_errors > 0;
    Ok(disks.filter(is_failed).map(|disk| disk.path).collect())
}

/// How the pool and its tiers stand.
async fn at_the_end(
    node: &Node,
    spec: &NodeSpec,
    begin: &Begin,
) -> kura_block::Result<(PoolSummary, Option<TierSummary>)> {
    let pool = node.pool.pool().await?;
    let used_bytes = pool.data_bytes.saturating_sub(pool.free_bytes);
    let pool = PoolSummary { data_bytes: pool.data_bytes, used_bytes };
    let Some(tier) = &spec.tier else { return Ok((pool, None)) };
    let (info, (moves, before)) = (node.pool.tier().await?, begin.tier);
    let tier = TierSummary {
        policy: tier.settings.clone(),
        hindrance: info.hindrance,
        total_bytes: info.total_bytes,
        valid_bytes: info.valid_bytes,
        stale_bytes: info.stale_bytes,
        moves: info.moves - moves,
        reads: info.hits.reads - before.reads,
        fast_reads: info.hits.fast_reads - before.fast_reads,
        writes: info.hits.writes - before.writes,
        fast_writes: info.hits.fast_writes - before.fast_writes,
    };
    Ok((pool, Some(tier)))
}

fn of_controller(controller: &Controller, before: &ControllerInfo) -> ControllerSummary {
    let info = controller.info();
    ControllerSummary {
        id: info.id,
        reads: info.reads - before.reads,
        writes: info.writes - before.writes,
        read_bytes: info.read_bytes - before.read_bytes,
        written_bytes: info.written_bytes - before.written_bytes,
        hot_blocks: info.array.hot_blocks - before.array.hot_blocks,
        cooled_blocks: info.array.cooled_blocks - before.array.cooled_blocks,
        cold_blocks: info.array.cold_blocks - before.array.cold_blocks,
        dirty_bytes: info.dirty_bytes,
        journal_used_bytes: info.journal_used_bytes,
        journal_bytes: info.journal_bytes,
    }
}
