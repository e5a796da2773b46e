//! A controller that has its pool for itself, or all of a pool.

use kura_block::{ControllerId, Result, Runtime};
use kura_controller::{Config, Controller, Node, SharedPool};
use kura_shared::InProcess;
use kura_sim::SimDisk;
use std::rc::Rc;
use std::sync::Arc;

/// Opens the controller of these disks, and lets it keep them in order.
pub async fn open(disks: &[SimDisk], runtime: &Rc<dyn Runtime>, config: Config) -> Rc<Controller> {
    start((disks, disks), runtime, config).await.unwrap()
}

/// All controllers of the pool on these disks.
pub async fn all(disks: &[SimDisk], runtime: &Rc<dyn Runtime>, config: Config) -> (Node, Vec<Rc<Controller>>) {
    let paths: Vec<String> = disks.iter().map(|disk| disk.name().to_owned()).collect();
    let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
    Node::start(&paths, SimDisk::opener(disks), runtime, &shared, config).await.unwrap()
}

/// The same for a controller of `all` disks, of which those in `here` are found.
pub async fn start(
    disks: (&[SimDisk], &[SimDisk]),
    runtime: &Rc<dyn Runtime>,
    config: Config,
) -> Result<Rc<Controller>> {
    let controller = idle(disks, runtime, config).await?;
    controller.store().begin_upkeep();
    Ok(controller)
}

/// The same, before it does anything by itself.
pub async fn idle(
    (all, here): (&[SimDisk], &[SimDisk]),
    runtime: &Rc<dyn Runtime>,
    config: Config,
) -> Result<Rc<Controller>> {
    let paths: Vec<String> = all.iter().map(|disk| disk.name().to_owned()).collect();
    let shared = Arc::new(InProcess::new());
    let opener = Box::new(SimDisk::opener(here));
    let recovered = Controller::recover(ControllerId(0), &paths, opener, Rc::clone(runtime), shared, config).await?;
    recovered.begin().await
}
