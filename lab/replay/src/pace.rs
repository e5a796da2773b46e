//! When requests are issued.

use crate::error::Error;
use crate::run::Run;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kura_trace::Request;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

fn of_trace(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Trace(Box::new(error))
}

/// Requests, each issued at its time whatever happened to those before it.
pub(crate) struct OpenLoop<I> {
    requests: I,
    /// More requests under way than these end it.
    in_flight_limit: u64,
    /// When the first request was issued, and its time in the trace.
    begun: Option<(Duration, u64)>,
}

impl<E, I> OpenLoop<I>
where
    E: std::error::Error + Send + Sync + 'static,
    I: Iterator<Item = Result<Request, E>>,
{
    pub(crate) fn new(requests: I, in_flight_limit: u64) -> Self {
        Self { requests, in_flight_limit, begun: None }
    }

    /// Issues requests until there are no more, or `goes_on`, which is told of each when it is due, says that one is the last. True
    /// where there may be more.
    pub(crate) async fn play(
        &mut self,
        run: &Rc<Run>,
        mut goes_on: impl FnMut(&Request) -> bool,
    ) -> Result<bool, Error> {
        while let Some(request) = self.requests.next().transpose().map_err(of_trace)? {
            let (begin, first_ns) = *self.begun.get_or_insert((run.now(), request.at_ns));
            let at = Duration::from_nanos(request.at_ns.saturating_sub(first_ns));
            let due = begin + at;
            let early = due.saturating_sub(run.now());
            if !early.is_zero() {
                run.sleep(early).await;
            }
            let (waiting, done) = {
                let tally = run.tally.borrow();
                (tally.in_flight, tally.done)
            };
            if waiting >= self.in_flight_limit {
                return Err(Error::Overloaded { at, waiting, done });
            }
            let goes_on = goes_on(&request);
            run.begin(request, due);
            if !goes_on {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Issues requests with `depth` under way at once, the next as soon as one is answered; `tell` hears of each when it is due.
pub(crate) async fn closed_loop<E: std::error::Error + Send + Sync + 'static>(
    requests: impl Iterator<Item = Result<Request, E>>,
    depth: usize,
    run: &Run,
    tell: impl Fn(&Request),
) -> Result<(), Error> {
    let requests = RefCell::new(requests);
    let next = || requests.borrow_mut().next().transpose().map_err(of_trace);
    let one_by_one = || async {
        while let Some(request) = next()? {
            tell(&request);
            run.tally.borrow_mut().begin();
            run.serve(request, run.now()).await;
        }
        Ok::<(), Error>(())
    };
    let mut workers: FuturesUnordered<_> = (0..depth.max(1)).map(|_| one_by_one()).collect();
    while let Some(done) = workers.next().await {
        done?;
    }
    Ok(())
}
