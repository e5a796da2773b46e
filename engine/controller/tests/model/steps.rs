//! Random work on a node, step by step, as the model follows it.

use super::reference::{BLOCK, Reference};
use super::volumes::{
    changes, create, delete, drain_or_resume, find_out, forget_dropped, move_volume, none_may_go, resize, roll_back,
    snapshot,
};
use super::world::Opened;
use kura_block::{Block, Buf, Bufs};
use kura_controller::{Controller, SnapshotSpec};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// What one step does to a volume.
#[derive(Clone, Debug)]
enum Action {
    Write {
        offset: usize,
        data: Vec<u8>,
        fua: bool,
    },
    /// Writes of at most so many bytes, one after the other.
    Stream {
        offset: usize,
        data: Vec<u8>,
        piece: usize,
    },
    Zero {
        offset: usize,
        len: usize,
        keep: bool,
    },
    Discard {
        offset: usize,
        len: usize,
    },
    Read {
        offset: usize,
        len: usize,
    },
    Flush,
}

/// Now and then nobody asks for anything, for as long as it takes to put places in order.
pub async fn rest(runtime: &dyn kura_block::Runtime, rng: &mut ChaCha8Rng) {
    if rng.random_bool(0.06) {
        runtime.sleep(Duration::from_millis(rng.random_range(200..600))).await;
    }
}

pub async fn step(
    controllers: &Opened,
    reference: &RefCell<Reference>,
    rng: &mut ChaCha8Rng,
    names: &mut u32,
    seed: u64,
) {
    forget_dropped(controllers, &mut reference.borrow_mut(), seed);
    let volumes: Vec<String> = reference.borrow().volumes.keys().cloned().collect();
    if volumes.len() < 2 || (volumes.len() < 4 && rng.random_bool(0.05)) {
        *names += 1;
        create(controllers, reference, rng, (format!("v{names}"), seed)).await;
        return;
    }
    let name = &volumes[rng.random_range(0..volumes.len())];
    let owner =
        |name: &str| controllers.iter().find(|one| one.volumes().iter().any(|volume| volume.spec.name == *name));
    let owner = owner(name).unwrap_or_else(|| panic!("seed {seed}: nobody owns {name}"));
    if rng.random_bool(if name.contains('@') { 0.1 } else { 0.03 }) {
        delete(controllers, reference, name, seed).await;
        return;
    }
    if volumes.len() < 9 && rng.random_bool(0.1) {
        *names += 1;
        make_another(controllers, reference, rng, (name, *names, seed)).await;
        return;
    }
    let device = owner.open_volume(name).unwrap();
    let size = device.geometry().size_bytes as usize;
    // Work of one step is under way at once and does not overlap: each piece keeps to its own part of the volume.
    let parts = rng.random_range(1..=4);
    let part = size / parts / BLOCK * BLOCK;
    if name.contains('@') && rng.random_bool(0.1) {
        roll_back(owner, reference, name, seed).await;
        return;
    }
    if let Some(parent) = parent_of(owner, name).filter(|_| rng.random_bool(0.1)) {
        changes(owner, reference, [name, &parent], seed).await;
        return;
    }
    let read_only = reference.borrow().volumes[name].read_only;
    let mut actions: Vec<Action> = (0..parts).map(|at| action(rng, at * part, part)).collect();
    if read_only {
        actions.retain(|action| matches!(action, Action::Read { .. } | Action::Flush));
    }
    let to = (owner.id().0 + 1) % controllers.len() as u16;
    // Sometimes the volume moves meanwhile, or all of a controller's do; or volumes are made, deleted, or get another size.
    let (moving, whole) = (rng.random_range(0..100), rng.random_bool(0.25));
    let moves = moving < 18;
    reference.borrow_mut().at_once = moves || whole;
    // A client may leave while its request is under way. One whose volume moves has left it to the new owner.
    let work = actions.into_iter().map(|action| {
        let polls = (!moves && rng.random_bool(0.15)).then(|| rng.random_range(1..12));
        act(&*device, name, reference, action, (polls, controllers, seed))
    });
    let work: Vec<_> = work.collect();
    let moving = async {
        match moving {
            0..15 => move_volume(&controllers.node, name, to, seed).await,
            15..18 => drain_or_resume(controllers, reference, to, seed).await,
            _ => {}
        }
    };
    let others: Vec<String> = volumes.iter().filter(|other| *other != name).cloned().collect();
    let changing = async {
        if whole {
            change_volumes((controllers, owner), reference, rng, (name, &others, names, seed)).await;
        }
    };
    futures::future::join3(futures::future::join_all(work), moving, changing).await;
    find_out(&*device, reference, name, seed).await;
    let at_once = std::mem::take(&mut reference.borrow_mut().at_once);
    if !at_once && rng.random_bool(0.1) {
        resize(controllers, reference, rng, (name, seed)).await;
    }
}

/// Does one or two things to volumes as wholes while a client works on one of them.
async fn change_volumes(
    at: (&Opened, &Rc<Controller>),
    reference: &RefCell<Reference>,
    rng: &mut ChaCha8Rng,
    (name, others, names, seed): (&str, &[String], &mut u32, u64),
) {
    let (first, second) = (rng.random_range(0..10), rng.random_range(0..10));
    // Nothing else is told of what it is meanwhile.
    let alone = first == 7 || second >= 7;
    let mut other = ChaCha8Rng::from_rng(rng);
    let numbers = [*names + 1, *names + 2];
    *names += 2;
    let one = change(first, at, reference, rng, (name, others, numbers[0], seed));
    let another = async {
        if !alone {
            change(second, at, reference, &mut other, (name, others, numbers[1], seed)).await;
        }
    };
    futures::future::join(one, another).await;
}

async fn change(
    what: u32,
    (controllers, owner): (&Opened, &Rc<Controller>),
    reference: &RefCell<Reference>,
    rng: &mut ChaCha8Rng,
    (name, others, number, seed): (&str, &[String], u32, u64),
) {
    match what {
        0..2 if others.len() < 4 => create(controllers, reference, rng, (format!("v{number}"), seed)).await,
        2..4 if others.len() > 1 => {
            delete(controllers, reference, &others[rng.random_range(0..others.len())], seed).await;
        }
        4..7 if others.len() < 8 => make_another(controllers, reference, rng, (name, number, seed)).await,
        0..7 => {}
        7 => {
            let of = |other: &&String| parent_of(owner, other).as_deref() == Some(name);
            if let Some(snapshot) = others.iter().find(of) {
                roll_back(owner, reference, snapshot, seed).await;
            }
        }
        _ => resize(controllers, reference, rng, (name, seed)).await,
    }
}

/// What a snapshot or clone was made of.
pub fn parent_of(owner: &Controller, name: &str) -> Option<String> {
    let here = owner.volumes().into_iter().find(|volume| volume.spec.name == name)?;
    Some(here.svol?.pvol)
}

/// Makes a snapshot of a volume or, where that is a snapshot, sometimes a clone; or snapshots of one instant: of all volumes,
/// or of its controller's, which share a PoolVOL from then on.
async fn make_another(
    controllers: &Opened,
    reference: &RefCell<Reference>,
    rng: &mut ChaCha8Rng,
    (name, number, seed): (&str, u32, u64),
) {
    let read_only = rng.random_bool(0.2);
    let snapshot_of = |of: String| SnapshotSpec { name: format!("{}@s{number}", of.replace('@', "-")), of, read_only };
    let what = rng.random_range(0..20);
    let wanted: Vec<SnapshotSpec> = match what {
        0..6 => {
            let named = |of: &Controller| of.volumes().into_iter().map(|volume| volume.spec.name).collect::<Vec<_>>();
            let groups =
                controllers.iter().map(|of| named(of)).filter(|group| what < 3 || group.contains(&name.to_owned()));
            groups.flatten().filter(|of| !of.contains('@')).map(snapshot_of).collect()
        }
        6..12 if name.contains('@') => {
            vec![SnapshotSpec { of: name.to_owned(), name: format!("c{number}"), read_only: false }]
        }
        _ => vec![snapshot_of(name.to_owned())],
    };
    if !wanted.is_empty() {
        snapshot(controllers, reference, wanted, seed).await;
    }
}

fn action(rng: &mut ChaCha8Rng, from: usize, len: usize) -> Action {
    let blocks = len / BLOCK;
    let first = rng.random_range(0..blocks);
    let count = rng.random_range(1..=(blocks - first).min(40));
    let (mut offset, mut len) = (from + first * BLOCK, count * BLOCK);
    if rng.random_bool(0.3) {
        let (head, tail) = (rng.random_range(0..BLOCK), rng.random_range(0..BLOCK));
        if head + tail < len {
            (offset, len) = (offset + head, len - head - tail);
        }
    }
    match rng.random_range(0..12) {
        0..=5 => {
            let mut data = vec![0; len];
            rng.fill_bytes(&mut data);
            if rng.random_bool(0.1) {
                let piece = BLOCK << rng.random_range(0..5);
                return Action::Stream { offset, data, piece };
            }
            Action::Write { offset, data, fua: rng.random_bool(0.2) }
        }
        6..=7 => Action::Read { offset, len },
        8 => Action::Zero { offset, len, keep: rng.random_bool(0.5) },
        9 => Action::Discard { offset: offset / BLOCK * BLOCK, len: len / BLOCK * BLOCK },
        _ => Action::Flush,
    }
}

/// What a request comes to, unless it is dropped before: when it has been polled so many times.
async fn until_polled<T>(request: impl Future<Output = T>, polls: Option<u32>) -> Option<T> {
    let (mut request, mut polled) = (std::pin::pin!(request), 0);
    std::future::poll_fn(|context| {
        polled += 1;
        match request.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if Some(polled) == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn act(
    device: &dyn Block,
    name: &str,
    reference: &RefCell<Reference>,
    action: Action,
    (polls, controllers, seed): (Option<u32>, &Opened, u64),
) {
    let is_cut_off = |reference: &RefCell<Reference>, end: usize| end > reference.borrow().stays(name);
    let settle = async |offset: usize, len: usize, durable: bool, done: Option<kura_block::Result<()>>| {
        let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        let in_part = |error: &kura_block::Error| {
            let refused = reference.borrow_mut().refuses(error);
            if refused {
                none_may_go(controllers, &reference.borrow(), seed);
            }
            refused || is_cut_off(reference, end)
        };
        // What a full pool refuses may be done in part, and so may what the volume becomes too small for.
        let done = done.filter(|done| !done.as_ref().is_err_and(in_part));
        match done {
            Some(Ok(())) => reference.borrow_mut().acknowledge(name, first, end, durable),
            Some(Err(_)) => reference.borrow_mut().undo(name, first, end),
            // Each block of a request that nobody waits for any more, or that was refused half-way, is what it was, or what it
            // was to become.
            None => {
                let end = end.min(reference.borrow().stays(name));
                if first < end {
                    let read = device.read((first * BLOCK) as u64, (end - first) * BLOCK).await;
                    let read = read.unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}")).contiguous();
                    // Meanwhile it may have begun to be rolled back.
                    let end = end.min(reference.borrow().stays(name));
                    for (block, found) in (first..end).zip(read.chunks(BLOCK)) {
                        reference.borrow_mut().settle(name, block, found);
                    }
                }
            }
        }
        done.unwrap_or(Ok(()))
    };
    let done = match action {
        Action::Write { offset, data, fua } => {
            reference.borrow_mut().write(name, offset, &data);
            let write = device.write(offset as u64, Bufs::from(Buf::copy_of(&data)), fua);
            settle(offset, data.len(), fua, until_polled(write, polls).await).await
        }
        Action::Stream { offset, data, piece } => {
            let (mut at, mut done) = (0, Ok(()));
            while at < data.len() && done.is_ok() {
                let end = ((offset + at + 1).next_multiple_of(piece) - offset).min(data.len());
                let bytes = &data[at..end];
                if is_cut_off(reference, (offset + end).div_ceil(BLOCK)) {
                    break;
                }
                reference.borrow_mut().write(name, offset + at, bytes);
                let write = device.write((offset + at) as u64, Bufs::from(Buf::copy_of(bytes)), false);
                done = settle(offset + at, bytes.len(), false, until_polled(write, polls).await).await;
                at = end;
            }
            done
        }
        Action::Zero { offset, len, keep } => {
            reference.borrow_mut().write(name, offset, &vec![0; len]);
            let zero = device.write_zeroes(offset as u64, len as u64, keep);
            settle(offset, len, false, until_polled(zero, polls).await).await
        }
        Action::Discard { offset, len } => {
            reference.borrow_mut().write(name, offset, &vec![0; len]);
            let discard = device.discard(offset as u64, len as u64);
            settle(offset, len, false, until_polled(discard, polls).await).await
        }
        Action::Read { offset, len } => match device.read(offset as u64, len).await {
            Ok(bytes) => {
                let len = len.min((reference.borrow().stays(name) * BLOCK).saturating_sub(offset));
                let expected = reference.borrow().bytes(name, offset, len);
                assert!(bytes.contiguous()[..len] == expected[..], "seed {seed}: {name} reads wrong at {offset}+{len}");
                Ok(())
            }
            Err(_) if is_cut_off(reference, (offset + len).div_ceil(BLOCK)) => Ok(()),
            Err(error) => Err(error),
        },
        Action::Flush => {
            let acknowledged = reference.borrow().acknowledged(name);
            let done = device.flush().await;
            reference.borrow_mut().flushed(name, &acknowledged);
            done
        }
    };
    if let Err(error) = done {
        // Its volume is being rolled back to it: it stays as it is.
        assert!(error.to_string().contains("being rolled back"), "seed {seed}: {name}: {error}");
    }
}
