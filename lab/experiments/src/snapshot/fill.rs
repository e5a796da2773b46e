//! A pool filled until a save copy finds no room.

use super::costs::{Costs, time};
use super::machine::join;
use anyhow::{Result, bail};
use kura_block::{Kind as Remedy, Runtime};
use kura_sim::Sim;
use kura_snapshot::method::{IndexEntry, Kind, Region};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::rc::Rc;

/// Controllers that fill a pool, each twice as fast as the next one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fill {
    pub controllers: u16,
    pub pool_entries: u32,
    pub costs: Costs,
}

/// The pool when a save copy first found no room.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Filled {
    /// Part of its entries that hold something.
    pub used: f64,
    /// The largest part that was ever in reserve, free and of use to one controller only.
    pub stranded: f64,
}

impl Fill {
    /// Fills it under `kind`.
    pub fn run(&self, kind: Kind, seed: u64) -> Result<Filled> {
        let sim = Sim::new(seed);
        let (tables, joined) = join(&sim, kind, self.controllers, self.pool_entries, self.costs);
        let methods: Rc<Vec<_>> = Rc::new(joined.iter().map(|(_, method)| Rc::clone(method)).collect());
        for (memory, method) in &joined {
            let (memory, method) = (Rc::clone(memory), Rc::clone(method));
            sim.runtime().spawn(Box::pin(async move {
                use kura_snapshot::method::ControlMemory;
                while memory.arrived().await.is_ok() && method.attend().done().await.is_ok() {}
            }));
        }
        let stranded = Rc::new(Cell::new(0));
        let used = Rc::new(Cell::new(None));
        let work = methods.iter().enumerate().map(|(controller, method)| {
            let (methods, tables, runtime) = (Rc::clone(&methods), &tables, sim.runtime());
            let (stranded, used) = (Rc::clone(&stranded), Rc::clone(&used));
            let reserved = move || methods.iter().map(|method| method.reserved()).sum::<u32>();
            async move {
                for number in 0.. {
                    let region = Region { volume: controller as u64, number };
                    match method.take().done().await {
                        Ok(entry) => {
                            let saved = method.saved(region, entry).done().await?;
                            anyhow::ensure!(saved == IndexEntry::Pool(entry), "somebody else saved {region:?}");
                        }
                        Err(error) if error.kind() == Remedy::Full => {
                            used.set(used.get().or(Some(self.pool_entries - tables.free() - reserved())));
                        }
                        Err(error) => bail!(error),
                    }
                    if used.get().is_some() {
                        break;
                    }
                    stranded.set(reserved().max(stranded.get()));
                    runtime.sleep(time(self.costs.write_us * f64::from(1 << controller))).await;
                }
                Ok(())
            }
        });
        sim.block_on(futures::future::try_join_all(work))?;
        let part = |entries: u32| f64::from(entries) / f64::from(self.pool_entries);
        Ok(Filled { used: used.get().map_or(f64::NAN, part), stranded: part(stranded.get()) })
    }
}
