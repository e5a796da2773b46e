//! A device whose use can be ended.

use kura_block::{Block, Bufs, Error, Geometry, Local, Result, Run};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use tokio::sync::Notify;

/// A device until it is shut: from then on nothing reaches it, whoever still has it.
pub struct Gate {
    device: RefCell<Option<Rc<dyn Block>>>,
    /// What it was like last.
    geometry: Cell<Geometry>,
    /// Requests under way.
    inside: Cell<usize>,
    left: Notify,
}

/// A request under way.
struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.inside.set(self.0.inside.get() - 1);
        self.0.left.notify_waiters();
    }
}

impl Gate {
    /// All that goes to `device`, until it is shut.
    pub fn new(device: Rc<dyn Block>) -> Self {
        let geometry = Cell::new(device.geometry());
        Self { device: RefCell::new(Some(device)), geometry, inside: Cell::new(0), left: Notify::new() }
    }

    /// Lets nothing more through, and resolves when the last request that went through has ended.
    pub async fn shut(&self) {
        self.device.borrow_mut().take();
        while self.inside.get() > 0 {
            self.left.notified().await;
        }
    }

    fn enter<'a, T, F>(&'a self, work: impl FnOnce(Rc<dyn Block>) -> F + 'a) -> Local<'a, Result<T>>
    where
        F: Future<Output = Result<T>> + 'a,
    {
        Box::pin(async move {
            let device = self.device.borrow().clone();
            let device = device.ok_or_else(|| Error::retry("the object store was closed meanwhile: try again"))?;
            self.inside.set(self.inside.get() + 1);
            let _pass = Pass(self);
            work(device).await
        })
    }
}

impl Block for Gate {
    fn geometry(&self) -> Geometry {
        if let Some(device) = &*self.device.borrow() {
            self.geometry.set(device.geometry());
        }
        self.geometry.get()
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        self.enter(async move |device: Rc<dyn Block>| device.read(offset, len).await)
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        self.enter(async move |device: Rc<dyn Block>| device.write(offset, data, fua).await)
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        self.enter(async |device: Rc<dyn Block>| device.flush().await)
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        self.enter(async move |device: Rc<dyn Block>| device.discard(offset, len).await)
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        self.enter(async move |device: Rc<dyn Block>| device.write_zeroes(offset, len, keep).await)
    }

    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        self.enter(async move |device: Rc<dyn Block>| device.runs(offset, len).await)
    }
}
