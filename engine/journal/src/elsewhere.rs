//! Records whose data goes to a place of its own instead of into the log.
//!
//! ```text
//!  append_elsewhere ─> group ───────────────> waits for the data ─> makes it durable there ─> entry: "it lies there"
//!                        data ─> its place ───────┘                        └ or not ────────> entry with the data
//! ```
//!
//! An entry that says so is written only once the data is durable where it says. Where it did not get there, whatever the
//! reason, the entry carries the data as any other does: nobody has to know of it, and nothing waits for a place that is full
//! or hangs.

use kura_block::{Bufs, Checksum, Local};
use tokio::sync::oneshot;

/// A record with its data, as the log has it when the data did not arrive elsewhere.
pub struct Carried {
    /// What the layer above understands.
    pub body: Vec<u8>,
    /// Whole blocks.
    pub data: Bufs,
    /// One a block.
    pub checksums: Vec<Checksum>,
}

/// Makes durable what has arrived elsewhere by now; true when it is, at all of its places. It goes on when its answer is not
/// waited for.
pub type Settle = Box<dyn Fn() -> Local<'static, bool>>;

/// Data on its way elsewhere, of a record that waits to be written.
pub(crate) struct Elsewhere {
    /// Where the record begins among those of its group.
    pub begins: usize,
    pub carried: Carried,
    /// Resolves when the data has arrived, or will not.
    arrival: oneshot::Receiver<()>,
    has_arrived: bool,
}

impl Elsewhere {
    pub fn new(begins: usize, carried: Carried, arrival: oneshot::Receiver<()>) -> Self {
        Self { begins, carried, arrival, has_arrived: false }
    }

    /// Waits until the data has arrived, or will not; once.
    pub async fn wait(&mut self) {
        self.has_arrived = (&mut self.arrival).await.is_ok();
    }

    pub fn has_arrived(&self) -> bool {
        self.has_arrived
    }
}
