//! [`NameTable`] and [`NameWay`].

use kura_block::{ControllerId, Error, Local, Names, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Which names are taken, shared by the controllers of one process.
#[derive(Default)]
pub(crate) struct NameTable {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    owners: BTreeMap<String, ControllerId>,
    /// Counts up with each time a controller joins: what an earlier one asks for is refused.
    epochs: BTreeMap<ControllerId, u64>,
}

/// One controller's way to the names; it may be sent to the controller's thread.
pub(crate) struct NameWay {
    shared: Arc<NameTable>,
    me: ControllerId,
    epoch: u64,
}

impl NameTable {
    /// The way of a controller that starts. One that it had before is refused from now on.
    pub fn join(self: &Arc<Self>, me: ControllerId) -> NameWay {
        let epoch = self.with(|table| {
            let epoch = table.epochs.entry(me).or_default();
            *epoch += 1;
            *epoch
        });
        NameWay { shared: Arc::clone(self), me, epoch }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        // A panic under the lock is a broken invariant, and stops its controller: the others go on with what stands.
        work(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl NameWay {
    /// Does the work, unless a later way of this controller has replaced this one.
    fn with(&self, work: impl FnOnce(&mut BTreeMap<String, ControllerId>) -> Result<()>) -> Local<'_, Result<()>> {
        let done = self.shared.with(|table| {
            if table.epochs.get(&self.me) != Some(&self.epoch) {
                let me = self.me.0;
                return Err(Error::fenced(format!("controller {me}: another has started in its place: restart it")));
            }
            work(&mut table.owners)
        });
        Box::pin(std::future::ready(done))
    }
}

fn missing(name: &str) -> Error {
    Error::missing(format!("volume {name}: no such volume"))
}

impl Names for NameWay {
    fn take(&self, name: &str) -> Local<'_, Result<()>> {
        self.with(|owners| match owners.get(name) {
            None => {
                owners.insert(name.to_owned(), self.me);
                Ok(())
            }
            Some(ControllerId(holder)) => {
                let what = if name.contains('@') { "snapshot" } else { "volume" };
                Err(Error::exists(format!(
                    "{what} {name}: exists already, on controller {holder}: choose another name"
                )))
            }
        })
    }

    fn adopt(&self, name: &str) -> Local<'_, Result<()>> {
        self.with(|owners| owners.get_mut(name).map(|owner| *owner = self.me).ok_or_else(|| missing(name)))
    }

    fn release(&self, name: &str) -> Local<'_, Result<()>> {
        self.with(|owners| {
            owners.get(name).filter(|owner| **owner == self.me).ok_or_else(|| missing(name))?;
            owners.remove(name);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use kura_block::Kind;

    #[test]
    fn a_name_is_taken_once_and_given_up_by_its_owner() {
        let table = Arc::new(NameTable::default());
        let [one, two] = [1, 2].map(|id| table.join(ControllerId(id)));
        block_on(one.take("a")).unwrap();
        let error = block_on(two.take("a")).unwrap_err();
        assert_eq!(error.kind(), Kind::Exists);
        assert!(error.to_string().contains("on controller 1"), "{error}");
        assert_eq!(block_on(two.release("a")).unwrap_err().kind(), Kind::Missing);
        block_on(two.adopt("a")).unwrap();
        assert_eq!(block_on(one.release("a")).unwrap_err().kind(), Kind::Missing);
        block_on(two.release("a")).unwrap();
        assert_eq!(block_on(two.adopt("a")).unwrap_err().kind(), Kind::Missing);
        block_on(one.take("a")).unwrap();
    }

    /// A controller that is held up while another starts in its place takes, adopts and gives up nothing.
    #[test]
    fn a_way_that_was_replaced_is_fenced() {
        let table = Arc::new(NameTable::default());
        let (other, stale) = (table.join(ControllerId(2)), table.join(ControllerId(1)));
        block_on(stale.take("mine")).unwrap();
        block_on(other.take("theirs")).unwrap();
        let now = table.join(ControllerId(1));
        for refused in [stale.take("new"), stale.adopt("theirs"), stale.release("mine")] {
            assert_eq!(block_on(refused).unwrap_err().kind(), Kind::Fenced);
        }
        block_on(now.release("mine")).unwrap();
        block_on(now.take("new")).unwrap();
        block_on(other.release("theirs")).unwrap();
    }
}
