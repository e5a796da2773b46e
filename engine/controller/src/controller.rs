//! (being built)
use kura_block::{Block, Result, Runtime};
use std::rc::Rc;

/// One controller: one thread's volumes and the layers under them.
pub struct Controller {
    runtime: Rc<dyn Runtime>,
}

impl Controller {
    /// The clock and task spawner of this controller's thread.
    pub fn runtime(&self) -> &Rc<dyn Runtime> {
        &self.runtime
    }

    /// Opens a volume this controller owns, to be served to a client: `Missing` when it owns none of that name.
    pub fn open(&self, name: &str) -> Result<Rc<dyn Block>> {
        Err(kura_block::Error::missing(format!("volume {name}: no such volume")))
    }
}
