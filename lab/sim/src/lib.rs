//! The world underneath, pretended: virtual time, simulated devices, faults.
//!
//! The engine that runs here is the engine that serves: a [`Sim`] gives it a [`Runtime`](kura_block::Runtime) and
//! devices ([`Block`](kura_block::Block)), and nothing else differs.
//!
//! ```
//! use kura_block::{Block, Buf};
//! use kura_sim::{CrashPoint, DiskSpec, FaultPlan, Outcome, Sim};
//!
//! let sim = Sim::new(42);
//! let disk = sim.disk("fast0", DiskSpec::nvme(1 << 30));
//! sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(3)], ..FaultPlan::default() });
//! let device = disk.open();
//! let outcome = sim.run_until_crash_or(async {
//!     device.write(0, Buf::copy_of(&[7; 4096]).into(), false).await?;
//!     device.flush().await?;
//!     device.write(0, Buf::copy_of(&[8; 4096]).into(), false).await
//! });
//! assert!(matches!(outcome, Outcome::Crashed));
//! let byte = disk.at_rest(0, 1)[0]; // 7 or 8, as the seed will have it
//! assert!(byte == 7 || byte == 8);
//! ```
//!
//! # The model
//!
//! 1. **One thread, one order.** Tasks are polled in the order in which they were woken; time advances, to the
//!    nanosecond, only while every task waits; events of one moment happen in the order in which they were entered.
//!    Work of the processor takes no time.
//! 2. **All chance comes from one seed**, through generators with names. One seed twice gives the same operations
//!    at the same times ([`Sim::digest`]), the same bytes ([`SimDisk::digest`]) and the same end ([`Sim::now`]).
//! 3. **A device serves first come, first served**, on as many channels as its [`ServiceModel`] has. An operation
//!    is issued when its future is first polled and takes effect, all at once, when its service ends, whether or
//!    not anyone still waits. There are no interrupts, buses or controllers above the device.
//! 4. **A volatile cache decides what a crash leaves, not how long a write takes.** Writes, discards and zeroes
//!    without FUA are acknowledged into it; a flush, FUA, or a full cache puts them to rest.
//! 5. **A crash** drops every task. Each write, discard or zeroing that is not at rest (unflushed, or in flight) is kept,
//!    lost or torn in atoms, by the seed: a prefix of it stays, or any part. Where writes overlap, each atom ends as one
//!    of them or as it was. Now and then all are kept, or all lost. What is at rest stays. Time stands; the world goes
//!    on with the next incarnation.
//! 6. **Faults come from a [`FaultPlan`]**, each at an operation, at a time or by chance: writes lost, torn,
//!    misdirected or refused; reads refused until rewritten; bits that rot at rest; a disk that is slow, stalled,
//!    full or dead. A write that fails, and what is under way as a disk dies, is kept, lost or
//!    torn as in a crash. Faults outlast crashes. Each that strikes is noted in [`Sim::strikes`].
//! 7. **Not simulated**: networks, processor time, several machines with crashes of their own, reordering by the
//!    device's scheduler, wear, garbage collection in flash, zones and read-ahead of disks that turn.

mod agenda;
mod content;
mod disk;
mod executor;
mod fault;
mod medium;
mod model;
mod pages;
mod preset;
mod rotating;
mod sim;
#[cfg(test)]
mod tests;
mod trace;
mod trouble;
mod world;

pub use disk::{Cache, Discard, DiskSpec, SimBlock, SimDisk};
pub use fault::{CrashPoint, Fault, FaultKind, FaultPlan, Place, PlanShape, Strike, When};
pub use medium::Counters;
pub use model::{Constant, Io, IoKind, ServiceModel, Ssd, SsdSpec};
pub use preset::Model;
pub use rand_chacha::ChaCha8Rng;
pub use rotating::{Rotating, RotatingSpec};
pub use sim::{Outcome, Sim, SimRuntime};
