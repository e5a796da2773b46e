//! Reading ahead: a thread takes requests from their source while the node works on earlier ones.

use crate::error::Error;
use kura_trace::Request;
use std::sync::mpsc::{Receiver, sync_channel};
use std::vec::IntoIter;

/// Requests handed over at once.
const BATCH: usize = 4096;
/// Batches that wait.
const BATCHES: usize = 4;

/// The same requests in the same order, read by another thread, which ends when this is dropped.
pub(crate) struct Ahead<E> {
    batches: Receiver<Vec<Result<Request, E>>>,
    batch: IntoIter<Result<Request, E>>,
}

impl<E: std::error::Error + Send + Sync + 'static> Ahead<E> {
    pub(crate) fn of(requests: impl Iterator<Item = Result<Request, E>> + Send + 'static) -> Result<Self, Error> {
        let (sender, batches) = sync_channel(BATCHES);
        let mut requests = requests;
        let read = move || {
            loop {
                let batch: Vec<_> = requests.by_ref().take(BATCH).collect();
                if batch.is_empty() || sender.send(batch).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("requests".to_owned()).spawn(read);
        thread.map_err(|error| Error::Trace(Box::new(error)))?;
        Ok(Self { batches, batch: Vec::new().into_iter() })
    }

    /// The next request; `None` at the end. After an error nothing else is to be asked.
    pub(crate) fn next(&mut self) -> Result<Option<Request>, Error> {
        loop {
            match self.batch.next() {
                Some(request) => return request.map(Some).map_err(|error| Error::Trace(Box::new(error))),
                None => match self.batches.recv() {
                    Ok(batch) => self.batch = batch.into_iter(),
                    Err(_) => return Ok(None),
                },
            }
        }
    }
}
