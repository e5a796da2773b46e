//! `kura serve`: from the configuration to `ready`, and from a signal to the end.

pub mod console;
pub mod data;
pub mod disks;
mod durable;
pub mod greeting;
mod memory;
mod modelled;
mod nbd;
pub mod node;
pub mod panics;
pub mod replica;
pub mod s3;
pub mod schedules;
pub mod space;
mod tend;

use crate::cli::Serve;
use crate::config::{self, Config, Listen};
use crate::show::print_on;
use crate::signals::{Endings, TWICE};
use crate::{descriptors, logs, tls};
use anyhow::{Context, Result};
use data::DataDir;
use disks::{Book, planned, unlike};
use greeting::Greeting;
use kura_admin::{Access, Admin, Listener, Timestamp, Token};
use kura_controller::{Balancer, DiskInfo, Moved, Node, TierConfig, VolumeInfo, VolumeSpec};
use kura_object::Options;
use kura_s3::Key;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use node::{Running, limits, make_pool, models};
use replica::Keeper;
use s3::Objects;
use schedules::{Schedules, carry_out};
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tend::tend;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// The longest a stop may take; then it ends as a crash does, and the next start recovers.
const STOP: Duration = Duration::from_secs(9);
/// Threads that the doors have at most, and that HTTP has.
const DOOR_THREADS: usize = 4;
/// Histograms are folded this often, so that they stay small when nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);
/// Bounds of latency histograms, in seconds.
const LATENCIES_S: [f64; 14] =
    [20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 500e-3, 2.0];

/// Serves until a signal says to stop; the terminal is told nothing where that is wanted.
pub fn serve(serve: Serve, quiet: bool) -> Result<ExitCode> {
    let (file, degraded) = (serve.config.clone(), serve.degraded);
    let config = Config::load(file.as_deref(), serve.flags())?;
    logs::start(&config.log)?;
    let buckets = Matcher::Suffix("_seconds".to_owned());
    let metrics = PrometheusBuilder::new().set_buckets_for_metric(buckets, &LATENCIES_S)?.install_recorder()?;
    kura_nbd::meters::describe();
    kura_s3::meters::describe();
    let descriptors = descriptors::raise();
    let mut data = DataDir::open(config.data.get_ref())?;
    // Hashes of what comes over S3 are the most work that the doors do: they get every core there is, up to a few.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = |name| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(cores.min(DOOR_THREADS)).thread_name(name).enable_all().build()
    };
    let (runtime, http) = (runtime("doors")?, runtime(panics::HTTP)?);
    let mut doors = runtime.block_on(Doors::open(&config, &data))?;
    let (running, book) = start(&config, &data, degraded)?;
    // Now that the disks are open, which come first.
    doors.nbd.fit(descriptors)?;
    let ended = runtime.block_on(async {
        let pool = running.node.pool().await?;
        let tier = config.tier.config(pool.extent_bytes).map_err(anyhow::Error::msg)?;
        running.node.set_tier(tier.map(|tier| with_disks(tier, &pool.disks))).await?;
        if let Some(said) = unlike(pool.disks.iter().filter(|disk| disk.takes_data).map(|disk| disk.size_bytes)) {
            tracing::warn!("{said}");
        }
        let opened = match &doors.s3 {
            Some(_) => Some(Objects::open_if_possible(&running.node, &data, store_options(&config.s3)).await?),
            None => None,
        };
        let (objects, s3_failure) = match opened.transpose() {
            Ok(objects) => (objects, None),
            Err(why) => (None, Some(why)),
        };
        // Where there is no store nobody is listened to: a client hears so at once.
        let doors = Doors { s3: doors.s3.filter(|_| objects.is_some()), ..doors };
        let mut key = None;
        if data.is_new() {
            key = make_demo(&config, &running, objects.as_deref()).await?;
            data.finish()?;
        }
        let schedules = Arc::new(Schedules::open(&data)?);
        let keeper = Arc::new(Keeper::open(&data, running.node.clone())?);
        let warn_at = config.pool.warn_at_percent.into_inner();
        let balance = Duration::from_secs(config.pool.balance_s.into_inner());
        let stores = Stores { book, schedules, keeper, objects, s3_failure, key, quiet, warn_at, balance };
        doors.serve(&data, running, stores, metrics, http.handle()).await
    });
    // What a device that hangs keeps from its end is not waited for.
    runtime.shutdown_background();
    http.shutdown_background();
    ended
}

/// How the object store is run.
fn store_options(s3: &config::S3) -> Options {
    let recent_bytes = s3.cache.as_ref().map_or_else(memory::cache_bytes, |cache| cache.get_ref().0);
    Options { recent_bytes, durability: s3.acknowledge.into(), ..Options::default() }
}

/// Makes the pool where the data directory is new, and runs its controllers.
fn start(config: &Config, data: &DataDir, degraded: bool) -> Result<(Running, Book)> {
    let book = Book::open(data)?;
    if data.is_new() {
        let planned = planned(data.path(), &config.pool.disks);
        make_pool(&planned, (&config.pool).into(), false, data, &book)?;
    }
    let paths = book.candidates(&config.pool.disks);
    let fits = |extent_bytes| config.tier.config(extent_bytes).map(drop).map_err(anyhow::Error::msg);
    let (models, limits, spared) = (models(&config.pool.disks), limits(&config.pool, degraded), replica::needed(data)?);
    let running = Running::start(paths, &book, models, limits, &spared, fits)?;
    Ok((running, book))
}

/// The same with the single fast disk by the name that the pool has for it, which may be a link to it. One that is away costs
/// fast copies, of which each has its data elsewhere too, and keeps nobody from serving.
fn with_disks(tier: TierConfig, disks: &[DiskInfo]) -> TierConfig {
    let opened = |named: &String| {
        let is_it = |disk: &&DiskInfo| Path::new(&disk.path).canonicalize().is_ok_and(|real| real == Path::new(named));
        disks.iter().find(is_it).map(|disk| disk.path.clone())
    };
    let single_disk = tier.single_disk.as_ref().and_then(opened);
    if let (Some(named), None) = (&tier.single_disk, &single_disk) {
        tracing::warn!(
            "tier.single_disk: {named} is no disk that the pool has here: nothing goes up onto a single disk"
        );
    }
    TierConfig { single_disk, ..tier }
}

/// Makes the volume and the bucket `demo`, with a key for the latter.
async fn make_demo(config: &Config, running: &Running, objects: Option<&Objects>) -> Result<Option<Arc<Key>>> {
    let size_bytes = config.demo.get_ref().0;
    if size_bytes == 0 {
        return Ok(None);
    }
    let layout = running.node.pool().await?.own_layout();
    let spec = VolumeSpec { name: "demo".to_owned(), size_bytes, layout, thick: false, read_only: false };
    running.node.create_volume(spec).await?;
    match objects {
        Some(objects) => Ok(Some(objects.make_demo().await?)),
        None => Ok(None),
    }
}

/// What a server has beside its node.
struct Stores {
    book: Book,
    schedules: Arc<Schedules>,
    keeper: Arc<Keeper>,
    objects: Option<Arc<Objects>>,
    /// Why there are no objects, where there should be.
    s3_failure: Option<String>,
    /// A key that was made just now.
    key: Option<Arc<Key>>,
    /// True where a start says nothing, but of such a key: nobody is told its secret again.
    quiet: bool,
    /// Per cents of the pool's use from which on it warns.
    warn_at: Vec<u8>,
    /// How often controllers' work is looked at; zero is never.
    balance: Duration,
}

/// What a server listens on; open before the node runs, so that a port in use is told at once.
struct Doors {
    nbd: nbd::Doors,
    admin: Vec<(Listener, Access)>,
    admin_url: Option<String>,
    s3: Option<(kura_s3::Listener, String)>,
}

impl Doors {
    async fn open(config: &Config, data: &DataDir) -> Result<Self> {
        let unix = config.nbd.unix.as_ref();
        let unix = unix.map_or_else(|| Ok(data.join("nbd.sock")), |unix| std::path::absolute(unix.get_ref()))?;
        let nbd = nbd::Doors::open(&config.nbd, unix).await?;
        let mut admin = vec![(Listener::Unix(admin_socket(&data.join("admin.sock"))?), Access::Reach)];
        let mut admin_url = None;
        if let Listen::At(address) = *config.admin.listen.get_ref() {
            let (listener, access, url) = admin_port(&config.admin, address).await?;
            admin.push((listener, access));
            admin_url = Some(url);
        }
        let s3 = s3::listen(&config.s3).await?;
        Ok(Self { nbd, admin, admin_url, s3 })
    }

    /// Serves until a signal says to stop.
    async fn serve(
        self,
        data: &DataDir,
        running: Running,
        stores: Stores,
        metrics: PrometheusHandle,
        http: &Handle,
    ) -> Result<ExitCode> {
        let mut signals = Signals::catch()?;
        let Stores { book, schedules, keeper, objects, s3_failure, key, quiet, warn_at, balance } = stores;
        let (pass, passed_percent) = watch::channel(None);
        let book = Arc::new(book);
        book.settle(&running.node.pool().await?)?;
        let admin = Admin {
            node: running.node.clone(),
            metrics: metrics.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data: data.path().display().to_string(),
            nbd: self.nbd.uris(),
            s3: self.s3.as_ref().map(|(_, url)| url.clone()),
            s3_failure,
            rest: self.admin_url,
            disks: Arc::<Book>::clone(&book),
            objects: objects.as_ref().map(Objects::desk),
            objects_volume: s3::VOLUME,
            schedules: Arc::<Schedules>::clone(&schedules),
            replicas: Arc::<Keeper>::clone(&keeper),
            passed_percent,
            started_at: Timestamp::now(),
        };
        let greeting = greet(&admin, data, &running, key.as_deref()).await?;
        let ((stop, stopping), mut doors) = (watch::channel(false), JoinSet::new());
        let routes = kura_admin::router(admin);
        for (listener, access) in self.admin {
            doors.spawn_on(kura_admin::serve(listener, access, routes.clone(), console::PAGES, stopping.clone()), http);
        }
        drop(routes);
        if let (Some((listener, _)), Some(objects)) = (self.s3, &objects) {
            let service = kura_s3::Service::new(Arc::clone(&objects.directory));
            doors.spawn_on(kura_s3::serve(listener, service, stopping.clone()), http);
            doors.spawn(kura_s3::sweep(Arc::clone(&objects.directory), stopping.clone()));
        }
        doors.spawn(keeper.jobs().carry_out(stopping.clone()));
        doors.spawn(self.nbd.serve(running.node.clone(), Arc::<Keeper>::clone(&keeper), stopping.clone()));
        let upkeep = tokio::spawn(keep_up(metrics));
        doors.spawn(tend(running.node.clone(), book, stopping.clone()));
        doors.spawn(balance_work(running.node.clone(), balance, stopping.clone()));
        doors.spawn(space::watch_over(running.node.clone(), warn_at, pass, stopping.clone()));
        doors.spawn(carry_out(running.node.clone(), schedules, Arc::<Keeper>::clone(&keeper), stopping));
        let is_told = !quiet || key.is_some();
        if is_told && !print_on(&format!("{greeting}\nready")).unwrap_or(false) {
            tracing::warn!("standard output cannot be written: what it was to say is lost");
            revoke_unseen(objects.as_deref(), key.as_deref()).await;
        }
        // Without systemd there is nobody to tell.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        tokio::select! {
            () = signals.stop() => {}
            () = broken(&mut doors) => panic!("a door has closed by itself"),
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        upkeep.abort();
        tokio::select! {
            stopped = timeout(STOP, wind_down(stop, doors, (objects, keeper), running)) => {
                stopped.context("not stopped in time: the next start recovers what was acknowledged")??;
            }
            // Asked again: at once, then.
            () = signals.hurry() => std::process::exit(1),
        }
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    }
}

/// A key whose secret nobody has seen, and nobody will, is a door that cannot be opened, only broken.
async fn revoke_unseen(objects: Option<&Objects>, key: Option<&kura_s3::Key>) {
    let (Some(objects), Some(key)) = (objects, key) else { return };
    match objects.directory.revoke_key(&key.id).await {
        Ok(()) => tracing::warn!(
            key = key.id,
            "so was this access key's secret, and it is revoked: `kura key create` makes one"
        ),
        Err(error) => tracing::warn!(key = key.id, %error, "this access key's secret was never shown: revoke it"),
    }
}

/// What a start says on the terminal.
async fn greet(admin: &Admin, data: &DataDir, running: &Running, key: Option<&kura_s3::Key>) -> Result<String> {
    let volumes = running.node.volumes().await?;
    let greeting = Greeting {
        data: data.path(),
        replayed: running.replayed,
        volumes: volumes.iter().map(|volume| volume.spec.name.as_str()).collect(),
        nbd: &admin.nbd,
        admin: admin.rest.as_deref(),
        s3: admin.s3.as_deref(),
        key,
    };
    Ok(greeting.to_string())
}

/// What asks a server to stop.
struct Signals {
    endings: Endings,
    /// A terminal that is closed; none where that is to be survived, as with nohup.
    hangup: Option<Signal>,
}

impl Signals {
    fn catch() -> Result<Self> {
        let hangup = (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Self { endings: Endings::catch()?, hangup })
    }

    /// Resolves when the server is to stop.
    async fn stop(&mut self) {
        let Self { endings, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ending = endings.next() => tracing::info!("{ending}: stopping"),
            _ = hung_up => tracing::info!("SIGHUP: stopping"),
        }
    }

    /// Resolves when it is to stop at once. A terminal that is closed may tell so more than once.
    async fn hurry(&mut self) {
        let asked = Instant::now();
        loop {
            let ending = self.endings.next().await;
            if asked.elapsed() >= TWICE {
                return tracing::info!("{ending}: ending at once");
            }
        }
    }
}

/// True where whoever started this process has it ignore SIGHUP.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // A bit a signal, the first one being SIGHUP's.
    ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & 1 != 0)
}

/// Resolves when one of the server's own tasks has ended by a panic, not what it did for one client.
async fn broken(doors: &mut JoinSet<()>) {
    loop {
        match doors.join_next().await {
            Some(Err(ended)) if ended.is_panic() => return,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

/// Does for the metrics what they ask for now and then.
async fn keep_up(metrics: PrometheusHandle) {
    let mut ticks = interval(UPKEEP);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}

/// Moves volumes from controllers with much to do to those with little, until the server stops.
async fn balance_work(node: Node, period: Duration, mut stopping: watch::Receiver<bool>) {
    if period.is_zero() {
        return;
    }
    let mut ticks = interval(period);
    // What was done since the last tick counts as done in a period.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut balancer = Balancer::default();
    loop {
        tokio::select! {
            _ = stopping.changed() => return,
            _ = ticks.tick() => {}
        }
        // The object store uses its volume on the thread where that was when the server started.
        let may_move = |volume: &VolumeInfo| !s3::is_ours(&volume.spec.name);
        // A move may first bring home all that its volumes have in the fast tier. One that is given up here has not begun to change
        // owners, or does so all the same.
        let moved = tokio::select! {
            _ = stopping.changed() => return,
            moved = node.balance(&mut balancer, period, may_move) => moved,
        };
        match moved {
            Ok(None) => {}
            Ok(Some(Moved { volume, from, waited })) => {
                let (name, to, waited_us) = (&volume.spec.name, volume.controller, waited.as_micros() as u64);
                tracing::info!(volume = name, from, to, waited_us, "volume moved to a less busy controller");
            }
            Err(error) => tracing::warn!(%error, "no volume was moved to a less busy controller"),
        }
    }
}

/// Closes the doors, lets what came through them end, then closes the object store, and stops the node.
async fn wind_down(
    stop: watch::Sender<bool>,
    mut doors: JoinSet<()>,
    (objects, keeper): (Option<Arc<Objects>>, Arc<Keeper>),
    running: Running,
) -> Result<()> {
    stop.send_replace(true);
    while doors.join_next().await.is_some() {}
    keeper.rest().await;
    let closed = match objects {
        Some(objects) => objects.close().await,
        None => Ok(()),
    };
    // Volumes end cleanly whatever has become of the store.
    running.node.stop().await?;
    // Threads end when nobody can ask them any more.
    drop(keeper);
    tokio::task::spawn_blocking(move || running.join()).await?;
    closed
}

fn admin_socket(path: &Path) -> Result<UnixListener> {
    let refused = || format!("{}: cannot be listened at; a shorter --data may help", path.display());
    // The data directory is locked: whoever listened there is gone.
    if path.exists() {
        std::fs::remove_file(path).with_context(refused)?;
    }
    let listener = UnixListener::bind(path).with_context(refused)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).with_context(refused)?;
    Ok(listener)
}

async fn admin_port(admin: &config::Admin, address: SocketAddr) -> Result<(Listener, Access, String)> {
    let tcp = TcpListener::bind(address)
        .await
        .with_context(|| format!("admin address {address}: cannot be listened at; choose another with --admin"))?;
    let at = tcp.local_addr()?;
    let access = admin.token.as_ref().map_or(Access::ThisMachine, |token| Access::Token(Token::new(token.get_ref())));
    Ok(match &admin.tls {
        Some(tls) => {
            let identity = tls::identity(tls.cert.get_ref(), tls.key.get_ref())?;
            (Listener::Tls(tcp, identity), access, format!("https://{at}"))
        }
        None => (Listener::Tcp(tcp), access, format!("http://{at}")),
    })
}
