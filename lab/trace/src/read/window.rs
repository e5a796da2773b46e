//! Order of time, kept or restored within bounds.

use std::collections::VecDeque;

use crate::error::{Complaint, TraceError};
use crate::request::Request;

/// What reads items of one form, as they stand in a file.
pub trait Parser: Send {
    type Item;

    /// The next item; `None` after the last one.
    fn next(&mut self) -> Result<Option<Self::Item>, TraceError>;

    /// A complaint about the item given out last.
    fn complain(&self, complaint: Complaint) -> TraceError;

    /// Bytes read so far, and bytes in all, as they are stored.
    fn progress(&self) -> (u64, u64);

    /// By how much an item may be out of order and is put in order; beyond that it is refused.
    fn tolerance_ns(&self) -> u64;

    /// How a user puts a file of this form in order.
    fn how_to_sort(&self) -> &'static str;
}

/// How many items are held back at most to be put in order.
const MOST_HELD: usize = 1024;

/// What happened at a time.
pub trait Timed {
    fn at_ns(&self) -> u64;
}

impl Timed for Request {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }
}

/// Items in order of time; of one time, in the order in which they came.
pub struct Ordered<T> {
    parser: Box<dyn Parser<Item = T>>,
    tolerance_ns: u64,
    held: VecDeque<T>,
    /// The time of the last item given out.
    given_ns: u64,
    /// The latest time seen.
    latest_ns: u64,
    at_end: bool,
}

impl<T: Timed> Ordered<T> {
    pub fn new(parser: Box<dyn Parser<Item = T>>) -> Ordered<T> {
        let tolerance_ns = parser.tolerance_ns();
        Ordered { parser, tolerance_ns, held: VecDeque::new(), given_ns: 0, latest_ns: 0, at_end: false }
    }

    pub fn progress(&self) -> (u64, u64) {
        self.parser.progress()
    }

    /// The next item; `None` after the last one. Refused: an item that is too far out of order.
    pub fn next(&mut self) -> Result<Option<T>, TraceError> {
        while !self.at_end && !self.is_ripe() {
            match self.parser.next()? {
                Some(item) => self.hold(item)?,
                None => self.at_end = true,
            }
        }
        let item = self.held.pop_front();
        self.given_ns = item.as_ref().map_or(self.given_ns, Timed::at_ns);
        Ok(item)
    }

    /// Whether nothing may come before what is held first.
    fn is_ripe(&self) -> bool {
        let settled = |first: &T| self.latest_ns - first.at_ns() >= self.tolerance_ns;
        self.held.len() > MOST_HELD || self.held.front().is_some_and(settled)
    }

    fn hold(&mut self, item: T) -> Result<(), TraceError> {
        let at_ns = item.at_ns();
        if at_ns < self.given_ns || at_ns.saturating_add(self.tolerance_ns) < self.latest_ns {
            let seconds = (self.latest_ns - at_ns) as f64 / 1e9;
            let what = format!("out of order: this is {seconds:.9} s before one that stands above it");
            return Err(self.parser.complain(Complaint::new(what, self.parser.how_to_sort())));
        }
        if at_ns >= self.latest_ns {
            self.latest_ns = at_ns;
            self.held.push_back(item);
        } else {
            let place = self.held.partition_point(|other| other.at_ns() <= at_ns);
            self.held.insert(place, item);
        }
        Ok(())
    }
}
