//! Reading ahead: a thread takes items from their source while others work on earlier ones.

use std::sync::mpsc::{Receiver, sync_channel};
use std::vec::IntoIter;

/// Items handed over at once.
const BATCH: usize = 512;
/// Batches that wait.
const BATCHES: usize = 16;

/// The same items in the same order, taken by another thread, which ends when this is dropped.
pub struct Ahead<T> {
    batches: Receiver<Vec<T>>,
    batch: IntoIter<T>,
}

impl<T: Send + 'static> Ahead<T> {
    /// Begins to take items. An error says that there is no thread to be had.
    pub fn of(mut items: impl Iterator<Item = T> + Send + 'static) -> std::io::Result<Self> {
        let (sender, batches) = sync_channel(BATCHES);
        let take = move || {
            loop {
                let batch: Vec<_> = items.by_ref().take(BATCH).collect();
                if batch.is_empty() || sender.send(batch).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("requests".to_owned()).spawn(take)?;
        Ok(Self { batches, batch: Vec::new().into_iter() })
    }
}

impl<T> Iterator for Ahead<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        loop {
            if let Some(item) = self.batch.next() {
                return Some(item);
            }
            self.batch = self.batches.recv().ok()?.into_iter();
        }
    }
}
