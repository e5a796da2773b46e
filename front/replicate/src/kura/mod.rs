//! Workers of kura's own, with kura at both ends.
//!
//! ```text
//!   source                                                         target
//!   worker ── Link::Near: calls ─────────────────────────────────> Sink      a directory of this machine
//!   worker ── Link::Far: frames ──> TCP, or ssh's streams ──serve──> Sink      kura on another one
//! ```
//! Every worker has a way and a target's end of its own. Small files go in one message a directory, large ones in parts by
//! several workers; nothing waits for replies but comparisons by sums, several of which are under way. Nothing is made
//! durable file by file: `syncfs` comes once, before the marker says complete.

mod compare;
mod contents;
mod entry;
mod failed;
mod idle;
mod large;
mod limit;
mod link;
mod message;
mod serve;
mod sink;
mod tls;
mod worker;

pub use serve::{Service, serve_stdio, serve_stream};

use crate::attributes::{self, Attributes};
use crate::error::{Error, Failure, GONE, Result};
use crate::marker::{Held, Marker, hold};
use crate::run::{Carrier, Carry, Facts, Job, Of, Options, Source, Summed, Verified, compare, lock};
use crate::target::{Target, is_this_machine};
use crate::tree::{Catalogue, Changed, Kind, Meta, Need, open_directory};
use large::{Large, Larges};
pub use limit::Limit;
use link::{Far, Link};
use message::{Hold, Reply, Request, VERSION, Welcome};
use sink::Sink;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::thread::ScopedJoinHandle;
use std::time::Instant;
use worker::{Lost, SMALL, Sent, Worker, cause};

/// Of more files that are not whole none is looked for that nobody goes on with.
const MOST_LEFT: usize = 10_000;
/// The most bytes of what a target says that it has, all of which is kept in memory: of about thirty million entries.
const MOST_TREE: usize = 2 << 30;
/// What a message of paths holds at most: so many, and of attributes so many bytes.
const MOST_PATHS: (usize, usize) = (1024, 16 << 20);

pub(crate) struct Kura {
    target: Target,
    options: Options,
    /// For what is not a worker's.
    control: Mutex<Option<Link>>,
    /// For what the target is taken; one that is a directory here, by this.
    held: OnceLock<(Hold, Option<Held>)>,
    /// Which directory it is at another end, by device and inode: each way must lead there.
    is: OnceLock<Option<(u64, u64)>>,
}

impl Kura {
    pub fn new(target: &Target, options: &Options) -> Self {
        let (control, held, is) = (Mutex::default(), OnceLock::new(), OnceLock::new());
        Self { target: target.clone(), options: options.clone(), control, held, is }
    }

    fn failed(&self, why: impl ToString) -> Error {
        Error::target(self.target.to_string(), why)
    }

    fn local(&self) -> Option<&PathBuf> {
        if let Target::Local(path) = &self.target { Some(path) } else { None }
    }

    /// The directory of this machine that is held.
    fn held(&self) -> Option<&Held> {
        self.held.get().and_then(|(_, held)| held.as_ref())
    }

    /// A way of its own to the target.
    fn link(&self, hold: Hold) -> Result<Link> {
        let (far, path) = match &self.target {
            Target::Local(path) => {
                let sink = match self.held() {
                    Some(held) => held.directory().map(Sink::of),
                    None => Sink::open(path, false),
                };
                return Ok(Link::Near(Box::new(sink.map_err(|error| self.failed(error))?)));
            }
            Target::Tcp { address, tls, path } => (self.reach(address, *tls), &**path),
            Target::Ssh { host, port, path } => (Far::ssh(host, *port, path, self.options.timeout), ""),
            Target::Rsync(_) | Target::Kura { .. } | Target::Bucket(_) => {
                (Err("no tree can be sent there".to_owned()), "")
            }
        };
        let token = match &self.options.target_token_file {
            Some(file) => std::fs::read_to_string(file).map_err(|cause| Error::state(file, cause))?,
            None => String::new(),
        };
        let hello = Request::Hello { version: VERSION, path: path.as_bytes(), token: token.trim().as_bytes(), hold };
        let link = far.and_then(|far| far.greet(&hello, self.options.timeout)).map_err(|why| self.failed(why))?;
        // What is mounted there may have gone since the first one came.
        let is = link.welcome().map_err(|why| self.failed(why))?.lies_in.first().copied();
        if *self.is.get_or_init(|| is) == is { Ok(link) } else { Err(self.failed(GONE)) }
    }

    fn reach(&self, address: &str, tls: bool) -> std::result::Result<Far, String> {
        let Options { target_ca, timeout, allow_plain, .. } = &self.options;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let refused = match target_ca {
            None if tls => "TLS wants an authority to trust: name its PEM file with --target-ca",
            _ if !tls && !allow_plain && !is_this_machine(host) => {
                "it is another machine, and kura:// is not encrypted: name kuras:// or ssh://, or say --allow-plain"
            }
            ca => return Far::tcp(address, ca.as_deref().filter(|_| tls), *timeout),
        };
        Err(refused.to_owned())
    }

    fn opened<'l>(&self, control: &'l mut Option<Link>) -> Result<&'l mut Link> {
        if control.is_none() {
            *control = Some(self.link(self.held.get().map_or(Hold::No, |(hold, _)| *hold))?);
        }
        control.as_mut().ok_or_else(|| self.failed("there is no way to it"))
    }

    fn ask(&self, request: Request<'_>) -> Result<Reply> {
        let mut control = lock(&self.control);
        call(self.opened(&mut control)?, request).map_err(|why| self.failed(why))
    }

    /// Makes changes, one after the other, none of which waits for the reply of the one before; all are done then.
    fn change(&self, carry: &Carry<'_>, make: impl FnOnce(&mut Posting<'_>) -> Sent) -> Result<()> {
        let mut control = lock(&self.control);
        let mut posting = Posting { link: self.opened(&mut control)?, carry, awaited: 0 };
        make(&mut posting).and_then(|()| posting.settle()).map_err(|Lost(why)| self.failed(why))
    }

    /// Makes room for all large files, and learns what is there of them.
    fn prepare(&self, carry: &Carry<'_>) -> Result<Larges> {
        let changes = carry.changes;
        let (mut larges, mut unread): (Vec<(usize, Large)>, Vec<_>) = (Vec::new(), Vec::new());
        for (item, job) in carry.plan.jobs.iter().enumerate() {
            let Need::Contents { exists, .. } = job.need(changes) else { continue };
            let entry = job.entry(changes);
            if entry.kind != Kind::File || entry.size_bytes <= SMALL {
                continue;
            }
            let path = job.path(changes);
            // What cannot be read must not be cut there to the size that it would get.
            let opened = contents::open_at(&carry.source.root, &path);
            let large = Large::new(*job, path, exists && self.options.in_place);
            match opened {
                Ok(_) => larges.push((item, large)),
                Err(error) => {
                    carry.fail([Failure::new(large.at().path, cause(error))]);
                    large.fail();
                    unread.push((item, large));
                }
            }
        }
        for larges in larges.chunks_mut(1024) {
            let asked = larges.iter().map(|(_, large)| (large.at(), large.job.entry(changes).size_bytes)).collect();
            let Reply::Present(present, failures) = self.ask(Request::Prepare(asked))? else {
                return Err(self.failed("it answers something else"));
            };
            if present.len() != larges.len() {
                return Err(self.failed("it answers something else"));
            }
            carry.fail(failures);
            larges.iter_mut().zip(present).for_each(|((_, large), present)| large.present = present);
        }
        Ok(Larges::new(larges.into_iter().chain(unread).collect::<HashMap<_, _>>(), &carry.plan.lists))
    }

    /// What must be there before the workers begin, whose ways are opened meanwhile.
    fn begin(&self, carry: &Carry<'_>) -> Result<(Larges, Vec<Opened>)> {
        let new: Vec<_> = carry.changes.directories.iter().filter(|it| it.is_new).map(|it| &it.directory).collect();
        std::thread::scope(|scope| {
            let open = || self.link(Hold::Worker).map_err(|error| Lost(error.why()));
            let opening: Vec<_> = (0..carry.options.all_workers()).map(|_| scope.spawn(open)).collect();
            self.change(carry, |posting| {
                posting.each(
                    &new,
                    |_| 0,
                    |list| Request::Directories(list.iter().map(|it| (&*it.path, it.meta)).collect()),
                )
            })?;
            let larges = self.prepare(carry)?;
            Ok((larges, opening.into_iter().map(joined).collect()))
        })
    }

    fn work(&self, carry: &Carry<'_>, larges: &Larges, links: Vec<Opened>) -> Result<()> {
        let limit = &Limit::new(self.options.bandwidth);
        let workers = links.len();
        if links.iter().any(Opened::is_err) {
            lock(&carry.dealer).lose_worker();
        }
        let worker = |number: usize, link: Opened| {
            let began = Instant::now();
            let done = link.and_then(|link| Worker::new(carry, larges, limit, number, link).work());
            carry.progress.workers()[number].worked(began.elapsed());
            done
        };
        let lost: Vec<String> = std::thread::scope(|scope| {
            let worker = &worker;
            let links = links.into_iter().enumerate();
            let threads: Vec<_> = links.map(|(number, link)| scope.spawn(move || worker(number, link))).collect();
            threads.into_iter().filter_map(|thread| joined(thread).err().map(|Lost(why)| why)).collect()
        });
        let why = lost.first().map_or("no worker came to it", |why| why);
        if lost.len() == workers {
            return Err(self.failed(why));
        }
        // What a lost worker gave back after the others were done.
        if !lost.is_empty() && lock(&carry.dealer).has_any(0) {
            worker(0, Ok(self.link(Hold::Worker)?)).map_err(|Lost(why)| self.failed(why))?;
        }
        carry.fail_rest(why);
        Ok(())
    }

    /// What is done when all files are there.
    fn end(carry: &Carry<'_>, larges: &Larges, posting: &mut Posting<'_>) -> Sent {
        let changes = carry.changes;
        posting.each(
            &links(carry),
            |_| 0,
            |list| Request::Links(list.iter().map(|(path, to)| (&**path, &**to)).collect()),
        )?;
        let directories = changes.gone.iter().map(|path| (path.clone(), true));
        let gone: Vec<_> = changes.gone_entries().map(|path| (path, false)).chain(directories).collect();
        posting.each(
            &gone,
            |_| 0,
            |list| Request::Delete(list.iter().map(|(path, is_directory)| (&**path, *is_directory)).collect()),
        )?;
        // Away with what runs that were cut off have left, unless the next run goes on with it.
        let left = larges.left();
        if carry.sweeps && left.len() < MOST_LEFT {
            posting.post(Request::Sweep(left))?;
        }
        posting.each(
            &touched(carry),
            |(.., attributes)| attributes::bytes(attributes),
            |list| Request::Touch(list.iter().map(|(path, meta, own)| (*path, *meta, own.clone())).collect()),
        )
    }
}

/// A worker's way to the target, or why there is none.
type Opened = std::result::Result<Link, Lost>;

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Links to be made, each with what it is a link to. One to what was not carried would be one to whatever has that name: it is not
/// made either, and for the same cause.
fn links(carry: &Carry<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let path = |(directory, entry): (usize, usize)| Job { directory, entry }.path(carry.changes);
    let mut failures = lock(&carry.failures);
    let causes: HashMap<_, _> = failures.iter().map(|failure| (failure.path.clone(), failure.cause.clone())).collect();
    let mut links = Vec::new();
    for (link, to) in carry.changes.links.iter().map(|(link, to)| (path(*link), path(*to))) {
        match causes.get(&to) {
            Some(cause) => failures.push(Failure::new(link, cause)),
            None => links.push((link, to)),
        }
    }
    links.sort();
    links
}

/// Directories whose own attributes are to be set, now that nothing in them changes any more.
fn touched<'c>(carry: &Carry<'c>) -> Vec<(&'c [u8], Meta, Attributes)> {
    let mut touched = Vec::new();
    // Inner ones first: through one that its owner may not search they are reached no more.
    for Changed { directory, .. } in carry.changes.directories.iter().rev().filter(|changed| changed.has_new_meta) {
        let attributes = open_directory(carry.source.root.as_fd(), &directory.path)
            .map_err(std::io::Error::from)
            .and_then(|fd| attributes::read(fd.as_fd(), b"."));
        match attributes {
            Ok(attributes) => touched.push((&*directory.path, directory.meta, attributes)),
            Err(error) => carry.fail([Failure::new(directory.path.clone(), cause(error))]),
        }
    }
    touched
}

/// Changes on their way to the target, whose replies say what could not be changed.
struct Posting<'a> {
    link: &'a mut Link,
    carry: &'a Carry<'a>,
    awaited: usize,
}

impl Posting<'_> {
    /// A change in messages of some items, which have so many bytes beside their paths.
    fn each<T>(&mut self, items: &[T], bytes: impl Fn(&T) -> usize, request: impl Fn(&[T]) -> Request<'_>) -> Sent {
        messages(items, bytes).try_for_each(|items| self.post(request(items)))
    }

    fn post(&mut self, request: Request<'_>) -> Sent {
        match self.link.send(request).map_err(Lost)? {
            Some(reply) => self.take(reply)?,
            None => self.awaited += 1,
        }
        self.receive(false)
    }

    /// Waits for all replies.
    fn settle(mut self) -> Sent {
        self.receive(true)
    }

    fn receive(&mut self, waits: bool) -> Sent {
        while self.awaited > 0
            && let Some(reply) = self.link.receive(waits).map_err(Lost)?
        {
            self.awaited -= 1;
            self.take(reply)?;
        }
        Ok(())
    }

    fn take(&self, reply: Reply) -> Sent {
        match reply {
            Reply::Done(failures) => self.carry.fail(failures),
            Reply::Refused(why) => return Err(Lost(why)),
            _ => return Err(Lost("it answers something else".to_owned())),
        }
        Ok(())
    }
}

/// Items as messages hold them.
fn messages<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let (mut count, mut sum) = (1, items.first().map_or(0, &bytes));
    items.chunk_by(move |_, next| {
        (count, sum) = (count + 1, sum + bytes(next));
        let fits = count <= MOST_PATHS.0 && sum <= MOST_PATHS.1;
        if !fits {
            (count, sum) = (1, bytes(next));
        }
        fits
    })
}

/// What differs, by sums that both sides make at the same time.
fn differing(source: &Source, link: &mut Link, sums: &[Summed]) -> std::result::Result<Vec<Failure>, String> {
    let request = Request::Digests(sums.iter().map(|sum| (&*sum.path, sum.of == Of::Attributes)).collect());
    let near = link.send(request)?;
    let ours: Vec<std::io::Result<u128>> = sums.iter().map(|sum| contents::sum_at(&source.root, sum)).collect();
    let reply = if near.is_some() { near } else { link.receive(true)? };
    let Some(Reply::Bytes(theirs)) =
        reply.filter(|reply| matches!(reply, Reply::Bytes(theirs) if theirs.len() == 16 * sums.len()))
    else {
        return Err("it answers something else".to_owned());
    };
    let theirs = theirs.as_chunks::<16>().0.iter().map(|sum| u128::from_le_bytes(*sum));
    let differ = sums.iter().zip(ours).zip(theirs).filter_map(|((sum, ours), theirs)| match ours {
        Ok(ours) if ours == theirs => None,
        Ok(_) => Some(Failure::new(sum.path.clone(), sum.of.differ())),
        Err(error) => Some(Failure::new(sum.path.clone(), cause(error))),
    });
    Ok(differ.collect())
}

/// Asks and waits.
fn call(link: &mut Link, request: Request<'_>) -> std::result::Result<Reply, String> {
    let reply = match link.send(request)? {
        Some(reply) => Some(reply),
        None => link.receive(true)?,
    };
    match reply {
        Some(Reply::Refused(why)) => Err(why),
        Some(Reply::Records(records)) => Ok(Reply::Records(link.records(records, MOST_TREE)?)),
        Some(reply) => Ok(reply),
        None => Err("a reply is missing".to_owned()),
    }
}

impl Carrier for Kura {
    fn hold(&self, makes: bool) -> Result<()> {
        let held = match self.local() {
            Some(path) => hold(path, makes).map_err(|error| self.failed(error))?,
            None => None,
        };
        let _ = self.held.set((if makes { Hold::Run } else { Hold::Again }, held));
        Ok(())
    }

    fn facts(&self, _: bool) -> Result<Facts> {
        if let Some(path) = self.local() {
            // Without the copy being opened, which would make one where there is none.
            return Facts::of_directory(path).map_err(|error| self.failed(error));
        }
        let welcome = self.opened(&mut lock(&self.control))?.welcome();
        let Welcome { marker, above, boot, lies_in, owner } = welcome.map_err(|why| self.failed(why))?;
        let above = Some(above).filter(|above| !above.is_empty());
        Ok(Facts { marker: Marker::of_text(&marker), above, boot, lies_in, owner })
    }

    fn is_empty(&self) -> Result<bool> {
        if let Some(path) = self.local() {
            return crate::tree::is_empty(path).map_err(|error| self.failed(error));
        }
        Ok(self.ask(Request::IsEmpty)? == Reply::Bytes(vec![1]))
    }

    fn tree(&self) -> Result<Option<(Catalogue, Vec<Failure>)>> {
        if let Some(path) = self.local() {
            return crate::tree::told_at(path).map(Some).map_err(|error| self.failed(error));
        }
        match (self.ask(Request::Tree)?, self.ask(Request::Unread)?) {
            (Reply::Records(records), Reply::Done(unread)) => {
                let catalogue = Catalogue::of_records(records).map_err(|error| self.failed(error))?;
                Ok(Some((catalogue, unread)))
            }
            _ => Err(self.failed("it answers something else")),
        }
    }

    fn cuts(&self) -> bool {
        true
    }

    fn mark(&self, marker: &Marker, durably: bool) -> Result<()> {
        if let Some((path, held)) = self.local().zip(self.held()) {
            held.check(path).map_err(|error| self.failed(error))?;
        }
        self.ask(Request::Mark { text: marker.text().as_bytes(), durably }).map(drop)
    }

    fn sweep(&self) -> Result<()> {
        self.ask(Request::Sweep(Vec::new())).map(drop)
    }

    fn verify(&self, source: &Source, workers: usize) -> Result<Verified> {
        let (there, unread) = self.tree()?.unwrap_or_default();
        let (mut found, sums) = compare(source, &there, self.facts(false)?.owner.is_some());
        found.extend(unread);
        let sizes = sums.iter().filter_map(|sum| sum.of.bytes());
        let (files, bytes) = sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size));
        let next = AtomicUsize::new(0);
        let found = Mutex::new(found);
        // A message asks for so many sums: their order is that of the scan.
        let chunks: Vec<&[Summed]> = sums.chunks(32).collect();
        let worker = || -> Result<()> {
            if chunks.is_empty() {
                return Ok(());
            }
            let mut link = self.link(Hold::No)?;
            while let Some(chunk) = chunks.get(next.fetch_add(1, Relaxed)) {
                let differ = differing(source, &mut link, chunk).map_err(|why| self.failed(why))?;
                lock(&found).extend(differ);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
            threads.into_iter().try_for_each(joined)
        })?;
        Ok(Verified { files, bytes, seconds: 0.0, differing: std::mem::take(&mut *lock(&found)) })
    }

    fn carry(&self, carry: &Carry<'_>) -> Result<()> {
        let (larges, links) = self.begin(carry)?;
        self.work(carry, &larges, links)?;
        carry.progress.finish();
        self.change(carry, |posting| Self::end(carry, &larges, posting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_holds_so_many_items_and_so_many_bytes() {
        let lengths = |items: &[usize]| messages(items, |bytes| *bytes).map(<[usize]>::len).collect::<Vec<_>>();
        assert!(lengths(&[]).is_empty());
        assert_eq!(lengths(&vec![0; 2050]), [1024, 1024, 2]);
        let most = MOST_PATHS.1;
        assert_eq!(lengths(&[most, 1, most - 1, 1, most, most]), [1, 2, 1, 1, 1]);
    }
}
