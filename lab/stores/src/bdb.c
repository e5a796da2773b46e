/*
 * Berkeley DB 5.3 as an object store, for one phase: keys are the objects' names, a B-tree with pages of the file
 * system's block size, every put a transaction that is durable (DB_TXN_SYNC) when it is acknowledged.
 *
 *   bdb FOLDER create|read SIZE COUNT CLIENTS STEP VERSION < CONTENT
 *
 * CONTENT is SIZE bytes: what all objects have behind a stamp of 16 bytes, number and version. Object n is read as
 * the (n * STEP) mod COUNT-th. Prints nanoseconds: of the phase, then of each request, one a line. What is read is
 * compared with what was put. Built by src/bdb.rs, by the header that is installed with the library.
 */
#include <db.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define STAMP_BYTES 16
/* As large as its users make it; the default of 256 KiB would hold no object. */
#define CACHE_BYTES (64u << 20)
#define LOG_BUFFER_BYTES (8u << 20)
#define LOG_FILE_BYTES (64u << 20)
/* Of log between checkpoints, in KiB: logs that none of them needs any more are removed. */
#define CHECKPOINT_KIB (128u << 10)
#define LOCKS 100000u

static DB_ENV *env;
static DB *db;
static size_t size, count, clients, step;
static uint64_t version;
static int is_create;
static unsigned char *content;
static uint64_t *took_ns;
static uint64_t *begun_ns;
static pthread_barrier_t begin;

static void fail(const char *what, int error)
{
	fprintf(stderr, "Berkeley DB: %s: %s\n", what, db_strerror(error));
	exit(1);
}

static void must(int error, const char *what)
{
	if (error != 0)
		fail(what, error);
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void stamp(unsigned char *memory, uint64_t object)
{
	memcpy(memory, &object, 8);
	memcpy(memory + 8, &version, 8);
}

static void put(DBT *key, DBT *data)
{
	for (;;) {
		DB_TXN *txn;
		must(env->txn_begin(env, NULL, &txn, DB_TXN_SYNC), "begin");
		int error = db->put(db, txn, key, data, 0);
		if (error == 0) {
			must(txn->commit(txn, 0), "commit");
			break;
		}
		must(txn->abort(txn), "abort");
		/* The detector chose this one: its others go on, and it comes again. */
		if (error != DB_LOCK_DEADLOCK)
			fail("put", error);
	}
	/* Does nothing before there is so much log. */
	must(env->txn_checkpoint(env, CHECKPOINT_KIB, 0, 0), "checkpoint");
}

static void get(DBT *key, DBT *data, uint64_t object)
{
	unsigned char expected[STAMP_BYTES];
	unsigned char *memory = data->data;
	int error;
	while ((error = db->get(db, NULL, key, data, 0)) == DB_LOCK_DEADLOCK)
		;
	must(error, "get");
	stamp(expected, object);
	if (data->size != size || memcmp(memory, expected, STAMP_BYTES) != 0 ||
	    memcmp(memory + STAMP_BYTES, content + STAMP_BYTES, size - STAMP_BYTES) != 0) {
		fprintf(stderr, "Berkeley DB: object %" PRIu64 " was read with another content than was put\n", object);
		exit(1);
	}
}

static void *client(void *first)
{
	unsigned char *memory = malloc(size);
	if (memory == NULL)
		fail("memory", ENOMEM);
	memcpy(memory, content, size);
	pthread_barrier_wait(&begin);
	begun_ns[(size_t)(uintptr_t)first] = now_ns();
	for (size_t nth = (size_t)(uintptr_t)first; nth < count; nth += clients) {
		size_t object = is_create ? nth : (nth * step) % count;
		char name[24];
		DBT key = {0}, data = {0};
		uint64_t start = now_ns();
		key.data = name;
		key.size = (u_int32_t)snprintf(name, sizeof name, "%08zu", object);
		data.data = memory;
		data.size = data.ulen = (u_int32_t)size;
		data.flags = DB_DBT_USERMEM;
		if (is_create) {
			stamp(memory, object);
			put(&key, &data);
		} else {
			get(&key, &data, object);
		}
		took_ns[nth] = now_ns() - start;
	}
	free(memory);
	return NULL;
}

static void open_all(const char *folder)
{
	must(db_env_create(&env, 0), "environment");
	must(env->set_cachesize(env, 0, CACHE_BYTES, 1), "cache");
	must(env->set_lg_bsize(env, LOG_BUFFER_BYTES), "log buffer");
	must(env->set_lg_max(env, LOG_FILE_BYTES), "log file");
	must(env->set_lk_detect(env, DB_LOCK_DEFAULT), "deadlocks");
	must(env->set_lk_max_locks(env, LOCKS), "locks");
	must(env->set_lk_max_objects(env, LOCKS), "locked objects");
	must(env->log_set_config(env, DB_LOG_AUTO_REMOVE, 1), "old logs");
	must(env->open(env, folder, DB_CREATE | DB_RECOVER | DB_INIT_MPOOL | DB_INIT_LOCK | DB_INIT_LOG | DB_INIT_TXN |
	    DB_THREAD | DB_PRIVATE, 0600), folder);
	must(db_create(&db, env, 0), "database");
	must(db->open(db, NULL, "objects.db", NULL, DB_BTREE, DB_CREATE | DB_AUTO_COMMIT | DB_THREAD, 0600), "objects.db");
}

static size_t number(const char *text)
{
	char *end;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno != 0 || *text == 0 || *end != 0)
		fail(text, EINVAL);
	return (size_t)value;
}

int main(int argc, char **argv)
{
	/* Not longer than who asked for it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc != 8)
		fail("arguments", EINVAL);
	is_create = strcmp(argv[2], "create") == 0;
	size = number(argv[3]);
	count = number(argv[4]);
	clients = number(argv[5]);
	step = number(argv[6]);
	version = number(argv[7]);
	content = malloc(size);
	took_ns = calloc(count, sizeof *took_ns);
	begun_ns = calloc(clients, sizeof *begun_ns);
	pthread_t *threads = calloc(clients, sizeof *threads);
	if (content == NULL || took_ns == NULL || begun_ns == NULL || threads == NULL)
		fail("memory", ENOMEM);
	if (size < STAMP_BYTES || fread(content, 1, size, stdin) != size)
		fail("content", EINVAL);
	open_all(argv[1]);
	pthread_barrier_init(&begin, NULL, (unsigned)clients + 1);
	for (size_t nth = 0; nth < clients; nth++)
		must(pthread_create(&threads[nth], NULL, client, (void *)(uintptr_t)nth), "thread");
	pthread_barrier_wait(&begin);
	uint64_t start = now_ns();
	for (size_t nth = 0; nth < clients; nth++)
		must(pthread_join(threads[nth], NULL), "thread");
	uint64_t end = now_ns();
	/* The first of them may have been at work before this thread was on a core again. */
	for (size_t nth = 0; nth < clients; nth++)
		if (begun_ns[nth] < start)
			start = begun_ns[nth];
	uint64_t elapsed_ns = end - start;
	must(db->close(db, 0), "closing the database");
	must(env->txn_checkpoint(env, 0, 0, 0), "last checkpoint");
	must(env->close(env, 0), "closing the environment");
	printf("%" PRIu64 "\n", elapsed_ns);
	for (size_t nth = 0; nth < count; nth++)
		printf("%" PRIu64 "\n", took_ns[nth]);
	return fflush(stdout) == 0 ? 0 : 1;
}
