//! Copies of volumes: a run between two kuras, each asked through its REST door.

use super::sites::{Home, Site};
use crate::serve::replica::refuse_object_store;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use kura_admin::{ClientError, Follow, NewTransfer, ProblemKind, Replica, ReplicaState, ResizeVolume};
use kura_block::Clients;
use kura_replicate::volume::{Facts, Head, Point, Step, Tidy, Transfer, common, next, point_name, tidy};
use kura_replicate::{Failure, Limit, Options, Origin, Progress, Summary, Target, Verified, rfc3339};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::sleep;
use xxhash_rust::xxh3::xxh3_64;

/// Frames on their way at once: what a link of 50 ms and 1 Gbit/s holds, and some.
const WINDOW: usize = 8;
/// How long to wait for the target's rollback, and how often to ask.
const ROLLING: Duration = Duration::from_mins(10);
const LOOK: Duration = Duration::from_millis(500);

/// A volume and its copy.
pub struct Pair {
    /// Where the volume is.
    pub source: Site,
    /// Where its copy is.
    pub target: Site,
    /// What its points are named by.
    pub id: u32,
}

impl Pair {
    /// Of a volume of `home`, and what a target names.
    pub fn of(home: &Home<'_>, volume: &str, target: &Target, options: &Options) -> Result<Self> {
        let Target::Kura { server, volume: copy } = target else {
            bail!("a volume goes to a kura: name its REST door and a volume there, https://HOST:PORT/VOLUME");
        };
        let source = home.volume(volume, options.timeout)?;
        let there = Site::of_target(server, copy, home, options)?;
        // The same whoever runs it, and another one for each target.
        let id = xxh3_64(format!("{}\n{target}", Origin::Volume(volume.to_owned())).as_bytes()) as u32;
        Ok(Self { source, target: there, id })
    }

    /// Refuses the object store's volume, at either end, before anybody is asked for anything.
    pub fn check_names(&self) -> kura_block::Result<()> {
        refuse_object_store(&self.source.volume)?;
        refuse_object_store(&self.target.volume)
    }

    /// The same the other way round.
    fn reversed(&self) -> Self {
        Self { source: self.target.clone(), target: self.source.clone(), id: self.id }
    }

    /// A run: until the target has a point that the run made.
    pub async fn run(
        &self,
        names: (&Origin, &Target),
        options: &Options,
        progress: &Progress,
        summary: &mut Summary,
    ) -> Result<()> {
        if options.adopt {
            let identity = self.source.identity().await?;
            if !self.is_followed(&identity).await? {
                self.target.adopt(identity).await?;
            }
        }
        self.carry(names, options, progress, summary).await?;
        self.tidy(options.keep as usize).await?;
        summary.is_complete = true;
        Ok(())
    }

    /// What a run would send now, about. Nothing is changed, and a target refused that is not this source's.
    pub async fn plan(&self, names: (&Origin, &Target), options: &Options, summary: &mut Summary) -> Result<()> {
        if !options.adopt {
            let replica = self.target.replica().await?;
            check(replica.as_ref(), &self.source.identity().await?, names.1)?;
            ensure!(
                replica.is_some() || !self.target.is_there().await?,
                "the target {}: is a volume there, and no copy: name another one, or say --adopt to lose what it has",
                names.1
            );
        }
        self.count(summary).await
    }

    /// What a fail-back would send now, about.
    pub async fn plan_back(&self, names: (&Origin, &Target), summary: &mut Summary) -> Result<()> {
        let (copy, volume) = (self.target.replica().await?, self.source.replica().await?);
        if is_back(copy.as_ref(), volume.as_ref()) {
            return Ok(());
        }
        let is_promoted = copy.is_some_and(|copy| copy.state == ReplicaState::Promoted);
        ensure!(is_promoted, "the target {}: was not failed over", names.1);
        self.reversed().count(summary).await
    }

    /// Counts what differs from the newest point that both ends have; without one all that the source has.
    async fn count(&self, summary: &mut Summary) -> Result<()> {
        let (source, volume) = (&self.source.client, &self.source.volume);
        summary.files = 1;
        let Some(common) = self.common().await? else {
            let volume = source.volume(volume).await?;
            // A clone has most of what it has with what it was made of.
            summary.bytes = if volume.made_of.is_some() { volume.size_bytes } else { volume.allocated_bytes };
            return Ok(());
        };
        let common = self.source.name_of(&common);
        let mut next = Some(0);
        while let Some(offset) = next {
            let page = source.changes(&common, volume, offset).await?;
            summary.bytes += page.ranges.iter().map(|range| range.size_bytes).sum::<u64>();
            next = page.next_offset_bytes;
        }
        Ok(())
    }

    /// True where the target is a copy of this source already, of which it may have no point yet.
    async fn is_followed(&self, identity: &str) -> Result<bool> {
        let replica = self.target.replica().await?.filter(|replica| replica.state == ReplicaState::Following);
        Ok(replica.is_some_and(|replica| replica.source.as_deref() == Some(identity)))
    }

    /// Brings a point that it makes to the target; deletes none.
    async fn carry(
        &self,
        names: (&Origin, &Target),
        options: &Options,
        progress: &Progress,
        summary: &mut Summary,
    ) -> Result<()> {
        let limit = Limit::new(options.bandwidth);
        let identity = self.source.identity().await?;
        let mut current: Option<String> = None;
        let mut sent: Vec<Transfer> = Vec::new();
        loop {
            let replica = self.target.replica().await?;
            check(replica.as_ref(), &identity, names.1)?;
            let (source, target) = self.points().await?;
            let transfer = replica.and_then(under_way);
            let facts =
                Facts { source: &source, target: &target, transfer: transfer.as_ref(), current: current.as_deref() };
            match next(facts) {
                Step::Make => {
                    let now = SystemTime::now();
                    summary.started_at = rfc3339(now);
                    let point = point_name(self.id, now);
                    self.source.make(&point).await?;
                    summary.point = Some(point.clone());
                    current = Some(point);
                }
                Step::Send(transfer) if sent.contains(&transfer) => {
                    bail!("the target {}: does not have {} after it was sent", names.1, transfer.to);
                }
                Step::Send(transfer) => {
                    let begun = self.begin(&transfer, &identity).await;
                    if begun.is_err() && current.as_ref() == Some(&transfer.to) {
                        // Nobody has use for a point that is not wanted, and a schedule would make many.
                        self.source.delete(&transfer.to).await.ok();
                    }
                    if let Some(offset) = begun? {
                        self.send(&transfer, offset, &limit, progress).await?;
                    }
                    sent.push(transfer);
                }
                Step::Done => break,
            }
        }
        progress.finish();
        Ok(())
    }

    /// Begins a transfer, or goes on with it, from the offset that this tells; none where its point is there.
    async fn begin(&self, transfer: &Transfer, identity: &str) -> Result<Option<u64>> {
        let Transfer { since, to } = transfer.clone();
        let size_bytes = self.source.client.snapshot(&self.source.name_of(&to)).await?.size_bytes;
        let new = NewTransfer { since, to, size_bytes, source: Some(identity.to_owned()) };
        let begun = self.target.client.begin_transfer(&self.target.volume, &new).await?;
        Ok(begun.transfer.map(|transfer| transfer.offset_bytes))
    }

    /// Sends what is missing of a transfer, and makes its point.
    async fn send(&self, transfer: &Transfer, offset: u64, limit: &Limit, progress: &Progress) -> Result<()> {
        let Transfer { since, to } = transfer;
        let name = self.source.name_of(to);
        let size_bytes = self.source.client.snapshot(&name).await?.size_bytes;
        let since = since.as_ref().map(|since| self.source.name_of(since));
        progress.carry(1, size_bytes, 1);
        let count = |bytes, sent| {
            if let Some(counter) = progress.workers().first() {
                counter.add(0, bytes);
                counter.sent(sent);
            }
        };
        count(offset, 0);
        let frames = stream::try_unfold(offset, |offset| self.fetch(&name, since.as_deref(), offset, size_bytes));
        let applied = frames.map_ok(|(head, frame)| async move {
            let sent = frame.len() as u64;
            sleep(limit.book(sent)).await;
            self.target.frames.apply_frame(&self.target.volume, frame).await?;
            count(head.next - head.offset, sent);
            anyhow::Ok(())
        });
        applied.try_buffer_unordered(WINDOW).try_for_each(async |()| Ok(())).await?;
        self.complete(to).await
    }

    async fn fetch(
        &self,
        name: &str,
        since: Option<&str>,
        offset: u64,
        size_bytes: u64,
    ) -> Result<Option<((Head, Bytes), u64)>> {
        if offset == size_bytes {
            return Ok(None);
        }
        let frame = self.source.frames.frame(name, since, offset).await?;
        let head = Head::of(&frame).map_err(|why| anyhow::anyhow!("{}: {why}", self.source))?;
        ensure!(head.offset == offset && head.next > offset, "{}: gave a frame that leads nowhere", self.source);
        Ok(Some(((head, frame), head.next)))
    }

    /// Makes the target's point. A target that is still going back to an earlier one is waited for.
    async fn complete(&self, to: &str) -> Result<()> {
        let deadline = Instant::now() + ROLLING;
        loop {
            match self.target.client.complete_transfer(&self.target.volume, to).await {
                Err(ClientError::Refused(problem))
                    if problem.kind == ProblemKind::Busy && Instant::now() < deadline =>
                {
                    sleep(LOOK).await;
                }
                done => return Ok(done.map(drop)?),
            }
        }
    }

    async fn tidy(&self, keep: usize) -> Result<()> {
        let (source, target) = self.points().await?;
        let facts = Facts { source: &source, target: &target, transfer: None, current: None };
        let Tidy { source, target } = tidy(facts, keep);
        for (site, points) in [(&self.source, source), (&self.target, target)] {
            for point in points {
                site.delete(&point).await?;
            }
        }
        Ok(())
    }

    /// The source's points of this pair, by their snapshots' names.
    pub async fn source_points(&self) -> Result<Vec<String>> {
        let points = self.source.points(self.id).await?;
        Ok(points.iter().filter(|point| point.is_own).map(|point| self.source.name_of(&point.name)).collect())
    }

    /// Deletes the source's points of this pair: no run follows that would delete one that is in use now, so that is an error.
    pub async fn forget(&self) -> Result<()> {
        let mut used = Vec::new();
        for point in self.source.points(self.id).await?.into_iter().filter(|point| point.is_own) {
            if !self.source.is_deleted(&point.name).await? {
                used.push(self.source.name_of(&point.name));
            }
        }
        ensure!(used.is_empty(), "{}: in use", used.join(", "));
        Ok(())
    }

    /// The points of both.
    async fn points(&self) -> Result<(Vec<Point>, Vec<Point>)> {
        tokio::try_join!(self.source.points(self.id), self.target.points(self.id))
    }

    /// The newest point that both have.
    async fn common(&self) -> Result<Option<String>> {
        let (source, target) = self.points().await?;
        Ok(common(&source, &target).map(str::to_owned))
    }

    /// Compares both ends at the newest point that both have, by checksums.
    pub async fn verify(&self) -> Result<Verified> {
        let began = Instant::now();
        let common = self.common().await?.context("there is no point yet that both ends have: run it first")?;
        let (here, there) = (self.source.name_of(&common), self.target.name_of(&common));
        let size = self.source.client.snapshot(&here).await?.size_bytes;
        let size_there = self.target.client.snapshot(&there).await?.size_bytes;
        ensure!(size == size_there, "{here} has {size} bytes and {there} {size_there}");
        let first = self.source.client.part_hash(&here, 0).await?;
        let step = first.next_offset_bytes.unwrap_or(size).max(1);
        let parts = stream::iter((0..size).step_by(step as usize)).map(|offset| {
            let (here, there) = (&here, &there);
            async move {
                let both = tokio::join!(
                    self.source.client.part_hash(here, offset),
                    self.target.client.part_hash(there, offset)
                );
                let is_same = both.0?.xxh3_128 == both.1?.xxh3_128;
                let path = format!("bytes {offset} to {}", size.min(offset + step));
                anyhow::Ok((!is_same).then(|| Failure::new(path, "differ")))
            }
        });
        let differing: Vec<Option<Failure>> = parts.buffered(WINDOW).try_collect().await?;
        let differing = differing.into_iter().flatten().collect();
        Ok(Verified { files: 1, bytes: size, seconds: began.elapsed().as_secs_f64(), differing })
    }

    /// Brings work with the copy back: the volume becomes what the copy is, and the copy follows it again. Where it was cut
    /// off, it goes on when it is done again.
    pub async fn fail_back(
        &self,
        names: (&Origin, &Target),
        options: &Options,
        progress: &Progress,
        summary: &mut Summary,
    ) -> Result<()> {
        let (copy, volume) = (self.target.replica().await?, self.source.replica().await?);
        let follows = volume.as_ref().is_some_and(|volume| volume.state == ReplicaState::Following);
        if is_back(copy.as_ref(), volume.as_ref()) {
            if follows {
                self.source.client.promote(&self.source.volume).await?;
            }
            summary.is_complete = true;
            return Ok(());
        }
        let is_promoted = copy.is_some_and(|copy| copy.state == ReplicaState::Promoted);
        ensure!(is_promoted, "the target {}: was not failed over", names.1);
        let copy = self.target.client.volume(&self.target.volume).await?;
        let clients = Clients(copy.clients);
        ensure!(clients.0 == 0, "the target {}: {clients}: unmount it and disconnect them", names.1);
        // A volume with snapshots does not shrink: the one that did not grow does.
        let size_bytes = self.source.client.volume(&self.source.volume).await?.size_bytes;
        if copy.size_bytes < size_bytes {
            let grow = ResizeVolume { size_bytes, shrink: false };
            self.target.client.resize_volume(&self.target.volume, grow, false).await?;
        }
        if !follows {
            let source = Some(self.target.identity().await?);
            let follow = Follow { point: self.common().await?, unchanged: false, source };
            self.source.client.follow_source(&self.source.volume, &follow).await?;
        }
        let back = self.reversed();
        back.carry(names, options, progress, summary).await?;
        // Both have the point: first the copy follows again, so that work is never possible at both ends.
        // What was written to the copy after that point is not brought back yet: then it does not follow.
        let source = Some(self.source.identity().await?);
        let follow = Follow { point: summary.point.clone(), unchanged: true, source };
        self.target.client.follow_source(&self.target.volume, &follow).await?;
        self.source.client.promote(&self.source.volume).await?;
        summary.is_complete = true;
        Ok(())
    }
}

/// Whether a copy follows again, as of the point that its source was brought to: the source is let go after that, and may have been,
/// by a fail-back that was cut off before it was told so.
fn is_back(copy: Option<&Replica>, volume: Option<&Replica>) -> bool {
    let follows = copy.filter(|copy| copy.state == ReplicaState::Following);
    follows.zip(volume).is_some_and(|(copy, volume)| copy.point.is_some() && copy.point == volume.point)
}

/// Refuses a target that is not this source's to change.
fn check(replica: Option<&Replica>, identity: &str, target: &Target) -> Result<()> {
    let Some(replica) = replica else { return Ok(()) };
    ensure!(
        replica.state != ReplicaState::Promoted,
        "the target {target}: was failed over, and may hold newer work than its source"
    );
    ensure!(
        replica.source.as_ref().is_none_or(|of| of == identity),
        "the target {target}: is the copy of another source: name another one, or say --adopt to lose what it has"
    );
    Ok(())
}

fn under_way(replica: Replica) -> Option<Transfer> {
    replica.transfer.map(|transfer| Transfer { since: transfer.since, to: transfer.to })
}
