//! The way onto a controller's thread.

use crate::Controller;
use kura_block::{Error, Local, Result};
use std::rc::Rc;
use tokio::sync::{mpsc, oneshot};

type Job = Box<dyn FnOnce(Rc<Controller>) -> Local<'static, ()> + Send>;

/// Sends work to a controller's thread. Clones reach the same controller.
#[derive(Clone)]
pub struct Door {
    jobs: mpsc::UnboundedSender<Job>,
}

/// The controller's end of a [`Door`].
pub struct Inbox {
    jobs: mpsc::UnboundedReceiver<Job>,
}

/// A [`Door`] that keeps no controller from ending.
#[derive(Clone)]
pub(crate) struct WeakDoor(mpsc::WeakUnboundedSender<Job>);

/// A door and its inbox.
pub fn door() -> (Door, Inbox) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Door { jobs: sender }, Inbox { jobs: receiver })
}

impl Door {
    /// Runs `work` on the controller's thread beside everything else there, and returns what it resolves to.
    pub async fn call<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Controller>) -> Local<'static, T> + Send + 'static,
    {
        self.begin(work)?.await.map_err(|_| stopped())
    }

    /// What the controller can say at once.
    pub async fn ask<T: Send + 'static>(&self, ask: impl FnOnce(&Rc<Controller>) -> T + Send + 'static) -> Result<T> {
        self.call(move |controller| -> Local<'static, T> { Box::pin(std::future::ready(ask(&controller))) }).await
    }

    fn begin<T, F>(&self, work: F) -> Result<oneshot::Receiver<T>>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Controller>) -> Local<'static, T> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |controller| {
            let work = work(controller);
            Box::pin(async move {
                // A caller that went away no longer wants the answer.
                let _ = answer.send(work.await);
            })
        });
        self.jobs.send(job).map_err(|_| stopped())?;
        Ok(answered)
    }

    /// Runs `work` on the controller's thread, if it still runs.
    pub fn send(&self, work: impl FnOnce(Rc<Controller>) + Send + 'static) {
        // A controller that has stopped has nothing to begin any more.
        let _ = self.jobs.send(Box::new(move |controller| {
            work(controller);
            Box::pin(std::future::ready(()))
        }));
    }
}

impl Door {
    pub(crate) fn downgrade(&self) -> WeakDoor {
        WeakDoor(self.jobs.downgrade())
    }
}

impl WeakDoor {
    /// As [`Door::call`].
    pub(crate) async fn call<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Controller>) -> Local<'static, T> + Send + 'static,
    {
        let jobs = self.0.upgrade().ok_or_else(|| Error::retry("the server is shutting down"))?;
        // What waits for the answer keeps no door open.
        let door = Door { jobs };
        let answer = door.begin(work);
        drop(door);
        answer?.await.map_err(|_| stopped())
    }

    /// As [`Door::send`].
    pub(crate) fn send(&self, work: impl FnOnce(Rc<Controller>) + Send + 'static) {
        if let Some(jobs) = self.0.upgrade() {
            Door { jobs }.send(work);
        }
    }
}

fn stopped() -> Error {
    Error::retry("the controller has stopped: is the server shutting down?")
}

impl Inbox {
    /// Serves the door until every [`Door`] is gone.
    pub async fn serve(mut self, controller: Rc<Controller>) {
        while let Some(job) = self.jobs.recv().await {
            let work = job(Rc::clone(&controller));
            controller.runtime().spawn(work);
        }
    }
}
