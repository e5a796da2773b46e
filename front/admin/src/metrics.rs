//! What Prometheus reads of the node: every name of it.

use crate::resources::{Controller, Disk, DiskState, Health, Status, Volume};
use crate::{KeptSchedule, ReplicationJob, TierStatus};
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::PrometheusBuilder;

/// All of it as Prometheus text. Each scrape has a recorder of its own, so that what is gone, such as a deleted volume,
/// is told no more.
pub(crate) fn render(
    status: &Status,
    tier: &TierStatus,
    jobs: &[ReplicationJob],
    schedules: &[KeptSchedule],
) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || {
        describe();
        tell_node(status);
        status.pool.disks.iter().for_each(tell_disk);
        status.controllers.iter().for_each(tell_controller);
        status.volumes.iter().for_each(tell_volume);
        tell_tier(tier);
        jobs.iter().for_each(tell_job);
        schedules.iter().for_each(tell_schedule);
    });
    recorder.handle().render() + &stops(&status.controllers)
}

/// How long writes stood still while snapshots were made, as a histogram: it is counted below, where they are made.
fn stops(controllers: &[Controller]) -> String {
    const NAME: &str = "kura_snapshot_stop_seconds";
    let mut text =
        format!("# HELP {NAME} Time that writes stood still while snapshots were made\n# TYPE {NAME} histogram\n");
    for Controller { id, snapshot_stops: stops, .. } in controllers {
        let mut line = |what: &str, bound: &str, value: String| {
            text += NAME;
            text += &[what, "{controller=\"", &id.to_string(), "\"", bound, "} ", &value, "\n"].concat();
        };
        for up_to in &stops.up_to {
            line("_bucket", &format!(",le=\"{}\"", up_to.us as f64 / 1e6), up_to.count.to_string());
        }
        line("_bucket", ",le=\"+Inf\"", stops.count.to_string());
        line("_sum", "", (stops.total_ns as f64 / 1e9).to_string());
        line("_count", "", stops.count.to_string());
    }
    text
}

fn describe() {
    describe_gauge!("kura_info", "Constant 1; the version is a label");
    describe_gauge!("kura_healthy", "1 when all is well, 0 when `kura status` shows a problem");
    describe_gauge!("kura_pool_data_bytes", Unit::Bytes, "Raw bytes for volumes' data on healthy disks");
    describe_gauge!(
        "kura_pool_free_bytes",
        Unit::Bytes,
        "Raw bytes for volumes' data that nobody holds, or only until somebody wants them"
    );
    describe_gauge!("kura_pool_volume_bytes", Unit::Bytes, "Raw bytes that volumes and clones hold");
    describe_gauge!("kura_pool_hot_bytes", Unit::Bytes, "Raw bytes of the mirrored area of hot-mirrored volumes");
    describe_gauge!("kura_pool_borrowed_bytes", Unit::Bytes, "Of the free ones, what that area has borrowed");
    describe_gauge!("kura_pool_snapshot_bytes", Unit::Bytes, "Raw bytes that are held because of snapshots");
    describe_gauge!("kura_pool_passed_percent", "The highest threshold that the pool's use has passed; 0 is none");
    describe_gauge!("kura_disk_healthy", "1 when the disk is in use, 0 when it is failed or missing");
    describe_gauge!("kura_disk_data_bytes", Unit::Bytes, "Bytes for volumes' data on the disk");
    describe_gauge!("kura_disk_free_bytes", Unit::Bytes, "Bytes of the disk that nobody holds");
    describe_counter!(
        "kura_disk_io_errors_total",
        "Reads, writes and flushes of the pool that failed on the disk, since the start"
    );
    describe_counter!("kura_disk_checksum_errors_total", "Blocks that failed their checksum since the start");
    describe_gauge!("kura_controller_volumes", "Volumes the controller owns");
    describe_gauge!("kura_controller_journal_bytes", Unit::Bytes, "Size of the journal");
    describe_gauge!("kura_controller_journal_used_bytes", Unit::Bytes, "Bytes of journal a crash now would replay");
    describe_gauge!("kura_controller_dirty_bytes", Unit::Bytes, "Bytes in the write buffer, not at their place yet");
    describe_gauge!("kura_controller_dirty_limit_bytes", Unit::Bytes, "The most the write buffer takes");
    describe_counter!("kura_controller_reads_total", "Reads since the start");
    describe_counter!("kura_controller_writes_total", "Writes since the start");
    describe_counter!("kura_controller_read_bytes_total", Unit::Bytes, "Bytes read since the start");
    describe_counter!("kura_controller_written_bytes_total", Unit::Bytes, "Bytes written since the start");
    describe_counter!(
        "kura_controller_straight_bytes_total",
        Unit::Bytes,
        "Bytes written that did not go through the journal: of large writes to where nothing was, and of streams of them"
    );
    describe_counter!("kura_controller_hot_blocks_total", "Blocks of 4 KiB written to the hot area");
    describe_counter!("kura_controller_cooled_blocks_total", "Blocks of 4 KiB moved from the hot area to stripes");
    describe_counter!("kura_controller_cold_blocks_total", "Blocks of 4 KiB written straight to stripes");
    describe_counter!("kura_controller_ordered_blocks_total", "Blocks of 4 KiB that snapshots had scattered, put back");
    describe_counter!("kura_controller_shared_accesses_total", "Accesses to memory that controllers share");
    describe_counter!("kura_controller_messages_total", "Messages to other controllers about what they share");
    describe_counter!("kura_controller_drops_total", "What was known of the pool and dropped for a message");
    describe_counter!("kura_controller_local_hits_total", "Look-ups and extents taken without shared memory");
    describe_counter!("kura_controller_carried_total", "Requests whose volume is another controller's by now");
    describe_counter!("kura_controller_snapshot_records_total", "Journal records that snapshots are");
    describe_gauge!("kura_volume_size_bytes", Unit::Bytes, "Size of the volume");
    describe_gauge!("kura_volume_allocated_bytes", Unit::Bytes, "Bytes of extents it holds, one copy counted");
    describe_gauge!("kura_volume_raw_bytes", Unit::Bytes, "Bytes of extents it holds, all copies counted");
    describe_gauge!("kura_volume_clients", "Clients that have it open");
    describe_gauge!("kura_volume_snapshots", "Snapshots of it, and clones made of it");
    describe_gauge!("kura_volume_lost", "1 when it can only be deleted, with its snapshots; 0 otherwise");
}

fn tell_node(status: &Status) {
    gauge!("kura_info", "version" => status.version.clone()).set(1);
    gauge!("kura_healthy").set(u8::from(status.health == Health::Healthy));
    gauge!("kura_pool_data_bytes").set(status.pool.data_bytes as f64);
    gauge!("kura_pool_free_bytes").set(status.pool.free_bytes as f64);
    gauge!("kura_pool_volume_bytes").set(status.pool.volume_bytes as f64);
    gauge!("kura_pool_hot_bytes").set(status.pool.hot_bytes as f64);
    gauge!("kura_pool_borrowed_bytes").set(status.pool.borrowed_bytes as f64);
    gauge!("kura_pool_snapshot_bytes").set(status.pool.snapshot_bytes as f64);
    gauge!("kura_pool_passed_percent").set(status.pool.passed_percent.unwrap_or(0));
}

/// Labels name the tier that served, so that their sum is all requests.
fn tell_tier(tier: &TierStatus) {
    describe_gauge!("kura_tier_fast_bytes", Unit::Bytes, "What the fast tier holds, one copy counted");
    describe_gauge!("kura_tier_fast_free_bytes", Unit::Bytes, "Of these, what nothing holds");
    describe_gauge!("kura_tier_valid_bytes", Unit::Bytes, "Blocks that lie in the fast tier, one copy counted");
    describe_gauge!("kura_tier_stale_bytes", Unit::Bytes, "Of these, blocks that the slow tier has older");
    describe_gauge!("kura_tier_waiting_bytes", Unit::Bytes, "Regions that wait to be moved");
    describe_counter!("kura_tier_moves_total", "Moves decided since the start");
    describe_counter!("kura_tier_reads_total", "Reads since the start, by the tier that served them");
    describe_counter!("kura_tier_writes_total", "Writes since the start, by the tier they go to");
    describe_gauge!("kura_tier_slow_utilisation", "Part of the last interval in which slow disks were busy");
    gauge!("kura_tier_fast_bytes").set(tier.total_bytes as f64);
    gauge!("kura_tier_fast_free_bytes").set(tier.free_bytes as f64);
    gauge!("kura_tier_valid_bytes").set(tier.valid_bytes as f64);
    gauge!("kura_tier_stale_bytes").set(tier.stale_bytes as f64);
    gauge!("kura_tier_waiting_bytes").set(tier.waiting_bytes as f64);
    gauge!("kura_tier_slow_utilisation").set(tier.slow_utilisation);
    counter!("kura_tier_moves_total").absolute(tier.moves);
    for (served, reads, writes) in [
        ("fast", tier.fast_reads, tier.fast_writes),
        ("slow", tier.reads - tier.fast_reads, tier.writes - tier.fast_writes),
    ] {
        counter!("kura_tier_reads_total", "tier" => served).absolute(reads);
        counter!("kura_tier_writes_total", "tier" => served).absolute(writes);
    }
}

fn tell_disk(disk: &Disk) {
    let labels = [("disk", disk.id.to_string()), ("path", disk.path.clone())];
    gauge!("kura_disk_healthy", &labels).set(u8::from(disk.state == DiskState::Healthy));
    gauge!("kura_disk_data_bytes", &labels).set(disk.data_bytes as f64);
    gauge!("kura_disk_free_bytes", &labels).set(disk.free_bytes as f64);
    counter!("kura_disk_io_errors_total", &labels).absolute(disk.io_errors);
    counter!("kura_disk_checksum_errors_total", &labels).absolute(disk.checksum_errors);
}

fn tell_controller(controller: &Controller) {
    let labels = [("controller", controller.id.to_string())];
    gauge!("kura_controller_volumes", &labels).set(controller.volumes);
    gauge!("kura_controller_journal_bytes", &labels).set(controller.journal_bytes as f64);
    gauge!("kura_controller_journal_used_bytes", &labels).set(controller.journal_used_bytes as f64);
    gauge!("kura_controller_dirty_bytes", &labels).set(controller.dirty_bytes as f64);
    gauge!("kura_controller_dirty_limit_bytes", &labels).set(controller.dirty_limit_bytes as f64);
    counter!("kura_controller_reads_total", &labels).absolute(controller.reads);
    counter!("kura_controller_writes_total", &labels).absolute(controller.writes);
    counter!("kura_controller_read_bytes_total", &labels).absolute(controller.read_bytes);
    counter!("kura_controller_written_bytes_total", &labels).absolute(controller.written_bytes);
    counter!("kura_controller_straight_bytes_total", &labels).absolute(controller.straight_bytes);
    counter!("kura_controller_hot_blocks_total", &labels).absolute(controller.array.hot_blocks);
    counter!("kura_controller_cooled_blocks_total", &labels).absolute(controller.array.cooled_blocks);
    counter!("kura_controller_cold_blocks_total", &labels).absolute(controller.array.cold_blocks);
    counter!("kura_controller_ordered_blocks_total", &labels).absolute(controller.ordered_blocks);
    counter!("kura_controller_shared_accesses_total", &labels).absolute(controller.sharing.shared_accesses);
    counter!("kura_controller_messages_total", &labels).absolute(controller.sharing.messages);
    counter!("kura_controller_drops_total", &labels).absolute(controller.sharing.drops);
    counter!("kura_controller_local_hits_total", &labels).absolute(controller.sharing.local_hits);
    counter!("kura_controller_carried_total", &labels).absolute(controller.sharing.carried);
    counter!("kura_controller_snapshot_records_total", &labels).absolute(controller.snapshot_stops.records);
}

fn tell_job(job: &ReplicationJob) {
    describe_gauge!(
        "kura_replicate_recovery_point_age_seconds",
        Unit::Seconds,
        "How old the moment is that the copy is of"
    );
    describe_gauge!("kura_replicate_late", "1 when that is older than the job's RPO, or there is none");
    describe_gauge!("kura_replicate_complete", "1 when the job's last run could copy everything");
    describe_gauge!("kura_replicate_running", "1 while this server runs it");
    let labels = [("job", job.name.clone()), ("source", job.source.clone()), ("target", job.target.clone())];
    if let Some(age_s) = job.recovery_point_age_s {
        gauge!("kura_replicate_recovery_point_age_seconds", &labels).set(age_s);
    }
    gauge!("kura_replicate_late", &labels).set(u8::from(job.is_late));
    if let Some(is_complete) = job.is_complete {
        gauge!("kura_replicate_complete", &labels).set(u8::from(is_complete));
    }
    gauge!("kura_replicate_running", &labels).set(u8::from(job.is_running));
}

fn tell_schedule(KeptSchedule { schedule, error }: &KeptSchedule) {
    describe_gauge!("kura_snapshot_schedule_failing", "1 while the schedule cannot be carried out");
    let labels = [("volume", schedule.volume.clone()), ("prefix", schedule.prefix.clone())];
    gauge!("kura_snapshot_schedule_failing", &labels).set(u8::from(error.is_some()));
}

fn tell_volume(volume: &Volume) {
    let labels = [("volume", volume.name.clone())];
    gauge!("kura_volume_size_bytes", &labels).set(volume.size_bytes as f64);
    gauge!("kura_volume_allocated_bytes", &labels).set(volume.allocated_bytes as f64);
    gauge!("kura_volume_raw_bytes", &labels).set(volume.raw_bytes as f64);
    gauge!("kura_volume_clients", &labels).set(volume.clients);
    gauge!("kura_volume_snapshots", &labels).set(volume.snapshots);
    gauge!("kura_volume_lost", &labels).set(u8::from(volume.lost));
}
