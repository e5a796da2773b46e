//! A volume as a client has it open, wherever it is.

use super::{Harbour, Place};
use crate::Controller;
use crate::door::WeakDoor;
use kura_block::{Block, Bufs, Error, Geometry, Local, Result, Run};
use kura_volume::{Store, Volume};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A volume of this controller, or one that was and is another's.
pub(crate) struct Ferry(Rc<Course>);

/// The way to a volume.
pub(super) struct Course {
    pub id: u64,
    store: Store,
    harbour: Rc<Harbour>,
    at: RefCell<At>,
}

#[derive(Clone)]
enum At {
    Here(Rc<Volume>),
    There(Rc<Abroad>),
}

/// What a controller says that was asked to open a volume.
enum Call {
    In(Guest, Geometry),
    /// It has gone on to there.
    On(WeakDoor),
}

/// A volume that another controller has open for this one.
struct Abroad {
    guest: Guest,
    geometry: Cell<Geometry>,
}

/// What a controller has open for another one: closed when this goes, also where nobody waits for it any more.
struct Guest {
    door: WeakDoor,
    number: u64,
}

impl Ferry {
    pub fn new(store: &Store, harbour: &Rc<Harbour>, volume: Volume) -> Self {
        let (id, at) = (volume.id(), RefCell::new(At::Here(Rc::new(volume))));
        let course = Rc::new(Course { id, store: store.clone(), harbour: Rc::clone(harbour), at });
        let mut courses = harbour.courses.borrow_mut();
        courses.retain(|course| course.strong_count() > 0);
        courses.push(Rc::downgrade(&course));
        Self(course)
    }
}

impl Course {
    /// Where the volume is now: what was begun there is not begun before it is.
    async fn at(&self) -> Result<At> {
        let at = self.at.borrow().clone();
        let now = match &at {
            At::Here(volume) if !volume.has_departed() => return Ok(at),
            At::Here(_) => self.follow().await?,
            // It may have come back.
            At::There(_) => match self.store.open_id(self.id) {
                Some(volume) => At::Here(Rc::new(volume)),
                None => return Ok(at),
            },
        };
        *self.at.borrow_mut() = now.clone();
        Ok(now)
    }

    /// Has the volume open where it is now, if that succeeds: otherwise the next request tries again, and says why.
    pub async fn keep_up(&self) {
        let _ = self.at().await;
    }

    /// Goes from controller to controller until the volume is there.
    async fn follow(&self) -> Result<At> {
        let id = self.id;
        let mut door = match self.harbour.locate(&self.store, id).await? {
            Place::Here(volume) => return Ok(At::Here(Rc::new(volume))),
            Place::There(door) => door,
        };
        loop {
            let there = door.clone();
            let open = move |controller: Rc<Controller>| -> Local<'static, Result<Call>> {
                Box::pin(async move { controller.let_in(id, there).await })
            };
            match door.call(open).await?? {
                Call::In(guest, geometry) => {
                    return Ok(At::There(Rc::new(Abroad { guest, geometry: Cell::new(geometry) })));
                }
                Call::On(next) => door = next,
            }
        }
    }
}

impl Controller {
    /// Opens a volume for another controller's client; `door` is this controller's own.
    async fn let_in(&self, id: u64, door: WeakDoor) -> Result<Call> {
        let volume = match self.harbour.locate(self.store(), id).await? {
            Place::Here(volume) => volume,
            Place::There(door) => return Ok(Call::On(door)),
        };
        let device = self.opened(volume);
        let (number, geometry) = (self.harbour.next_guest.get(), device.geometry());
        self.harbour.next_guest.set(number + 1);
        self.harbour.guests.borrow_mut().insert(number, device);
        Ok(Call::In(Guest { door, number }, geometry))
    }
}

impl Abroad {
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(Rc<dyn Block>) -> Local<'static, Result<T>> + Send + 'static,
    ) -> Result<T> {
        let number = self.guest.number;
        let carried = move |controller: Rc<Controller>| -> Local<'static, Result<(Result<T>, Geometry)>> {
            let device = controller.harbour.guests.borrow().get(&number).cloned();
            Box::pin(async move {
                let device = device.ok_or_else(|| Error::retry("the controller has closed the volume"))?;
                Ok((work(Rc::clone(&device)).await, device.geometry()))
            })
        };
        let (done, geometry) = self.guest.door.call(carried).await??;
        self.geometry.set(geometry);
        done
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let number = self.number;
        self.door.send(move |controller| {
            let closed = controller.harbour.guests.borrow_mut().remove(&number);
            drop(closed);
        });
    }
}

/// A request: at home, again if the volume left meanwhile and `again` says that its answer counts for nothing then.
macro_rules! request {
    ($self:ident, $again:expr, $device:ident => $work:expr) => {
        Box::pin(async move {
            loop {
                match $self.0.at().await? {
                    At::Here($device) => {
                        let done = $work.await;
                        if !($device.has_departed() && $again(&done)) {
                            return done;
                        }
                    }
                    At::There(abroad) => {
                        $self.0.harbour.carried.set($self.0.harbour.carried() + 1);
                        return abroad.ask(move |$device| Box::pin(async move { $work.await })).await;
                    }
                }
            }
        })
    };
}

impl Block for Ferry {
    fn geometry(&self) -> Geometry {
        match &*self.0.at.borrow() {
            At::Here(volume) => volume.geometry(),
            At::There(abroad) => abroad.geometry.get(),
        }
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        request!(self, |_: &Result<Bufs>| true, device => device.read(offset, len))
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        // What was written went along.
        request!(self, Result::is_err, device => device.write(offset, data.clone(), fua))
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        request!(self, Result::is_err, device => device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        request!(self, |_: &Result<()>| true, device => device.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        request!(self, |_: &Result<()>| true, device => device.write_zeroes(offset, len, keep))
    }

    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        request!(self, |_: &Result<Vec<Run>>| true, device => device.runs(offset, len))
    }
}
