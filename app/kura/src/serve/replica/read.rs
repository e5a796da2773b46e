//! Frames and checksums of snapshots, read on the thread of the controller that has them.

use bytes::Bytes;
use kura_admin::PartHash;
use kura_block::{Block, Bufs, Error, Result, RunKind};
use kura_controller::{Changes, Controller, Node};
use kura_replicate::volume::{Extent, FRAME_BYTES, Frame};
use std::rc::Rc;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::Xxh3;

/// Extents of a frame at most.
const EXTENTS: usize = 8192;
/// Bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// Bytes of a part that has a checksum.
const PART_BYTES: u64 = 64 << 20;
/// A difference is looked for so long.
const LOOK: Duration = Duration::from_secs(1);
/// Zeroes are summed up by so many.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The name of a snapshot without its volume's.
pub fn own_name(snapshot: &str) -> &str {
    snapshot.rsplit_once('@').map_or(snapshot, |(_, own)| own)
}

/// Refuses what may change while it is read.
async fn check_point(node: &Node, snapshot: &str) -> Result<kura_controller::Door> {
    let (door, info) = node.find(snapshot).await?;
    if !info.spec.read_only || info.svol.is_none() {
        return Err(Error::invalid(format!("{snapshot}: is not a read-only snapshot: give VOLUME@NAME")));
    }
    Ok(door)
}

/// What a snapshot has from an offset on, or what changed after `since`: packed.
pub async fn frame(node: &Node, snapshot: &str, since: Option<&str>, offset: u64) -> Result<Bytes> {
    let door = check_point(node, snapshot).await?;
    if let Some(since) = since {
        check_point(node, since).await?;
    }
    let (to, since) = (snapshot.to_owned(), since.map(str::to_owned));
    let read = door.call(move |controller| Box::pin(gather(controller, to, since, offset)));
    let frame = read.await??;
    let pack = tokio::task::spawn_blocking(move || frame.pack());
    let packed = pack.await.map_err(|error| Error::retry(format!("a frame: {error}")))?;
    Ok(packed.map_err(|error| Error::retry(format!("a frame cannot be packed: {error}")))?.into())
}

/// Where a snapshot differs from an offset on; everywhere where there is nothing to differ from.
async fn changed(controller: &Controller, since: Option<&str>, to: &str, offset: u64, size: u64) -> Result<Changes> {
    match since {
        Some(since) => controller.changed(since, to, offset..size).await,
        None => Ok(Changes { ranges: std::iter::once(offset..size).collect(), next_offset: None }),
    }
}

/// The first differences from an offset on. Both ends have as much to do with a frame of none as with one of many: it goes only so
/// that nobody waits for too long.
async fn first_changes(offset: u64, until: Instant, look: impl AsyncFn(u64) -> Result<Changes>) -> Result<Changes> {
    let mut changes = look(offset).await?;
    while changes.ranges.is_empty()
        && Instant::now() < until
        && let Some(next) = changes.next_offset
    {
        changes = look(next).await?;
    }
    Ok(changes)
}

async fn gather(controller: Rc<Controller>, to: String, since: Option<String>, offset: u64) -> Result<Frame> {
    let volume = controller.open_volume(&to)?;
    let size = volume.geometry().size_bytes;
    if offset > size || !offset.is_multiple_of(kura_block::BLOCK_BYTES as u64) {
        return Err(Error::invalid(format!("offset {offset}: is none of a frame in a volume of {size} bytes")));
    }
    let mut frame = Frame {
        since: since.as_deref().map(own_name).unwrap_or_default().to_owned(),
        to: own_name(&to).to_owned(),
        offset,
        ..Frame::default()
    };
    let look = async |offset| changed(&controller, since.as_deref(), &to, offset, size).await;
    let changes = first_changes(offset, Instant::now() + LOOK, look).await?;
    for range in changes.ranges {
        let mut at = range.start.max(offset);
        while at < range.end {
            if frame.data.len() >= FRAME_BYTES || frame.extents.len() >= EXTENTS {
                frame.next = at;
                return Ok(frame);
            }
            for run in volume.runs(at, range.end - at).await? {
                let room = (FRAME_BYTES - frame.data.len().min(FRAME_BYTES)) as u64;
                let is_data = run.kind == RunKind::Data;
                let len = if is_data { run.len_bytes.min(room) } else { run.len_bytes };
                if len == 0 || frame.extents.len() >= EXTENTS {
                    break;
                }
                if is_data {
                    read_into(&*volume, at, len, &mut frame.data).await?;
                }
                frame.extents.push(Extent { offset: at, len, is_data });
                at += len;
                if len < run.len_bytes {
                    break;
                }
            }
        }
    }
    frame.next = changes.next_offset.unwrap_or(size);
    Ok(frame)
}

async fn read_into(volume: &dyn Block, offset: u64, len: u64, data: &mut Vec<u8>) -> Result<()> {
    let mut at = offset;
    while at < offset + len {
        let step = READ_BYTES.min(offset + len - at);
        let read: Bufs = volume.read(at, step as usize).await?;
        read.parts().iter().for_each(|part| data.extend_from_slice(part));
        at += step;
    }
    Ok(())
}

/// The checksum of a part of a snapshot.
pub async fn hash(node: &Node, snapshot: &str, offset: u64) -> Result<PartHash> {
    let door = check_point(node, snapshot).await?;
    let name = snapshot.to_owned();
    door.call(move |controller| Box::pin(sum(controller, name, offset))).await?
}

async fn sum(controller: Rc<Controller>, snapshot: String, offset: u64) -> Result<PartHash> {
    let volume = controller.open_volume(&snapshot)?;
    let size = volume.geometry().size_bytes;
    if offset > size {
        return Err(Error::invalid(format!("offset {offset}: lies beyond the {size} bytes of {snapshot}")));
    }
    let end = size.min(offset.saturating_add(PART_BYTES));
    let (mut at, mut sum) = (offset, Xxh3::new());
    while at < end {
        for run in volume.runs(at, end - at).await? {
            let until = at + run.len_bytes;
            while at < until {
                let step = READ_BYTES.min(until - at);
                if run.kind == RunKind::Data {
                    volume.read(at, step as usize).await?.parts().iter().for_each(|part| sum.update(part));
                } else {
                    (0..step).step_by(ZEROES.len()).for_each(|done| {
                        sum.update(&ZEROES[..ZEROES.len().min((step - done) as usize)]);
                    });
                }
                at += step;
            }
        }
    }
    let next_offset_bytes = (end < size).then_some(end);
    Ok(PartHash { xxh3_128: format!("{:032x}", sum.digest128()), next_offset_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_frame_leads_past_what_does_not_differ() {
        let differs = |at: Option<u64>| {
            async move |offset: u64| {
                let ranges = at.filter(|at| *at == offset).map(|at| at..at + 1).into_iter().collect();
                Ok(Changes { ranges, next_offset: Some(offset + 1).filter(|next| *next < 100) })
            }
        };
        let later = Instant::now() + Duration::from_mins(1);
        let none = first_changes(0, later, differs(None)).await.unwrap();
        assert_eq!((none.ranges.len(), none.next_offset), (0, None));
        let some = first_changes(0, later, differs(Some(70))).await.unwrap();
        assert_eq!((some.ranges.first(), some.ranges.len(), some.next_offset), (Some(&(70..71)), 1, Some(71)));
        let late = first_changes(0, Instant::now(), differs(Some(70))).await.unwrap();
        assert_eq!((late.ranges.len(), late.next_offset), (0, Some(1)), "nobody waits for ever");
    }
}
