//! A load that goes on while the node is looked at, loses a disk and gets another one.

use crate::ahead::Ahead;
use crate::error::Error;
use crate::node::{Node, NodeDisk, NodeSpec};
use crate::options::{Options, Prefill};
use crate::pace::OpenLoop;
use crate::prefill;
use crate::replay::{Reporter, of_disk};
use crate::run::Run;
use crate::summary::Window;
use crate::survey::Survey;
use futures::future::{Either, select};
use kura_block::{BLOCK_BYTES, DeviceId};
use kura_controller::Controller;
use kura_trace::Request;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How often it is looked whether a rebuild is over.
const LOOK: Duration = Duration::from_millis(20);

/// A node under a load in open loop, all of whose volume is written.
///
/// ```text
///   start ──> play: warm up ──> play: a window ──> play_rebuild: a disk fails, a window until a spare has its place
/// ```
///
/// Requests go on from one window to the next: what is under way at the end of one is answered, and counted, in the next.
/// Contents are not checked: [`Options::verify`], `warm_ns`, `pace`, `prefill` and `size_bytes` do not count.
pub struct Session<E> {
    node: Node,
    run: Rc<Run>,
    load: OpenLoop<Ahead<Result<Request, E>>>,
}

impl<E: std::error::Error + Send + Sync + 'static> Session<E> {
    /// Makes the pool and a volume of `volume_bytes`, and writes all of it.
    pub fn start(
        spec: &NodeSpec,
        options: &Options,
        volume_bytes: u64,
        requests: impl Iterator<Item = Result<Request, E>> + Send + 'static,
    ) -> Result<Self, Error> {
        let node = spec.start(options, volume_bytes.next_multiple_of(BLOCK_BYTES as u64))?;
        let (needed_bytes, room_bytes) = (volume_bytes, node.room_bytes()?);
        if needed_bytes > room_bytes {
            return Err(Error::NoRoom { needed_bytes, room_bytes });
        }
        let run = Run::new(Rc::clone(&node.volume), Rc::clone(&node.runtime), &Options::default());
        let tell = &mut |_| {};
        let reporter = Reporter::new(&run, tell);
        node.sim.block_on(prefill::fill(&node, &run, &Survey::default(), Prefill::All, &reporter))?;
        node.sim.block_on(node.pool.set_tier(spec.tier()))?;
        let load = OpenLoop::new(Ahead::of(requests)?, options.in_flight_limit);
        Ok(Self { node, run, load })
    }

    /// Issues the next `requests`, or as many as there are. `tell` hears how many are issued, now and then.
    pub fn play(&mut self, requests: u64, mut tell: impl FnMut(u64)) -> Result<Window, Error> {
        let mut issued = 0;
        let goes_on = |_: &Request| {
            issued += 1;
            if issued % 1024 == 0 {
                tell(issued);
            }
            issued < requests
        };
        self.window(async |_, run, load| load.play(run, goes_on).await)
    }

    /// A disk fails, by its number in the node, and `spare` takes its place in the pool: issues requests meanwhile, until nothing
    /// is left to be moved off disks out of service, or the requests end.
    pub fn play_rebuild(&mut self, disk: u16, spare: &NodeDisk) -> Result<Window, Error> {
        self.node.insert(spare);
        self.window(async |node, run, load| {
            let rebuilt = Cell::new(false);
            let rebuild = async {
                let uuid = (node.disks.borrow().len() as u128).to_be_bytes();
                node.pool.add_disk(spare.name.clone(), spare.class, uuid).await?;
                node.pool.fail_disk(DeviceId(disk), true).await?;
                let unwanted = |controller: &Rc<Controller>| controller.store().unwanted();
                let left = || node.controllers.iter().any(|it| unwanted(it).values().any(|held| held.copies > 0));
                while left() {
                    node.runtime.sleep(LOOK).await;
                }
                rebuilt.set(true);
                Ok::<_, Error>(())
            };
            match select(pin!(load.play(run, |_| !rebuilt.get())), pin!(rebuild)).await {
                Either::Left((played, _)) => played,
                Either::Right((done, play)) => {
                    done?;
                    play.await
                }
            }
        })
    }

    fn window(
        &mut self,
        play: impl AsyncFnOnce(&Node, &Rc<Run>, &mut OpenLoop<Ahead<Result<Request, E>>>) -> Result<bool, Error>,
    ) -> Result<Window, Error> {
        let Self { node, run, load } = self;
        run.tally.borrow_mut().begin_window();
        node.disks.borrow().iter().for_each(kura_sim::SimDisk::reset_counters);
        let since = run.now();
        let is_cut = node.sim.block_on(play(node, run, load))?;
        let elapsed = run.now().saturating_sub(since);
        let tally = run.tally.borrow();
        Ok(Window {
            elapsed_ns: elapsed.as_nanos() as u64,
            read: tally.reads.response(),
            write: tally.writes.response(),
            in_flight_max: tally.in_flight_max,
            errors: tally.errors.values().sum(),
            first_error: tally.first_error.clone(),
            disks: node.disks.borrow().iter().map(|disk| of_disk(disk, elapsed)).collect(),
            trace_ended: !is_cut,
        })
    }
}
