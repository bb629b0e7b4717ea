/* Finds out which launcher started this process, and loads the module that speaks its MPI. MPI itself is not called
 * here. */
#include "comm/mpi/join.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A launcher is recognised by variables that it sets in the environment of a rank. */
typedef struct launcher {
  const char *variable, *and_variable;
  const char *ranks;  // the variable with the number of ranks that the launcher started
  const char *module;
  const char *words;  // the launcher's name in messages
} launcher;

static const launcher launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "openmpi", "Open MPI's mpirun"},
    {"PMI_RANK", "PMI_SIZE", "PMI_SIZE", "mpich", "MPICH's mpirun or srun --mpi=pmi2"},
    {"PMIX_RANK", "PMIX_NAMESPACE", "SLURM_STEP_NUM_TASKS", "openmpi", "srun --mpi=pmix"},
};

static const launcher *find_launcher(void) {
  for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
    if (getenv(launchers[i].variable) && getenv(launchers[i].and_variable)) return &launchers[i];
  return NULL;
}

// Returns 1 if srun started this task without PMI: the tasks cannot find each other, and each would train alone.
static int is_bare_srun(void) {
  const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
  return getenv("SLURM_PROCID") && tasks && atol(tasks) > 1;
}

int ad_mpi_launched(void) { return find_launcher() || is_bare_srun(); }

ad_status ad_mpi_check_ranks(const ad_mpi_transport *transport, int64_t joined) {
  const launcher *started_by = find_launcher();
  const char *started = getenv(started_by ? started_by->ranks : "SLURM_STEP_NUM_TASKS");
  if (joined > 1 || !started || atol(started) <= 1) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s started %s ranks, but %s could not join them and made each rank a separate world. Start ranks of "
                 "Open MPI with its own mpirun or srun --mpi=pmix, ranks of MPICH with its own mpirun or srun "
                 "--mpi=pmi2, or unset ADDEND_MPI_MODULE",
                 started_by ? started_by->words : "srun", started, transport->name);
}

/* ---- finding and loading the module for the launcher's MPI ---- */

typedef struct places {
  char text[8][PATH_MAX];
  int count;
} places;

static void add_place(places *p, const char *folder, const char *below, const char *module) {
  char *place = p->text[p->count];
  int length = snprintf(place, PATH_MAX, "%s%slibaddend-mpi-%s.so", folder, below, module);
  if (length > 0 && length < PATH_MAX) p->count++;
}

// Adds paths where `module` may be, near `file` (the library or program with this code): in the file's folder, and in
// the library folders near it.
static void add_places(places *p, const char *file, const char *module) {
  char path[PATH_MAX];
  if (!file || !realpath(file, path)) return;
  const char *folder = dirname(path);
  add_place(p, folder, "/", module);
  add_place(p, folder, "/addend/", module);
  add_place(p, folder, "/../lib/addend/", module);
  add_place(p, folder, "/../" AD_LIBRARY_FOLDER "/addend/", module);
}

static void find_places(const char *module, places *out) {
  Dl_info here;
  out->count = 0;
  if (dladdr((const void *)&ad_mpi_launched, &here)) add_places(out, here.dli_fname, module);
  add_places(out, "/proc/self/exe", module);
}

// Loads a module and gets its table. The table's version must be AD_MPI_TRANSPORT_VERSION.
static ad_status load_file(const char *path, const ad_mpi_transport **out) {
  // RTLD_GLOBAL, since Open MPI loads parts of itself that expect its symbols to be visible to all.
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    return ad_fail(AD_SYSTEM,
                   "the MPI module %s could not be loaded (%s); name another file in ADDEND_MPI_MODULE, or install "
                   "what is missing",
                   path, dlerror());
  const ad_mpi_transport *table = dlsym(library, AD_MPI_TRANSPORT_SYMBOL);
  if (table && table->version == AD_MPI_TRANSPORT_VERSION) {
    *out = table;
    return AD_OK;
  }
  dlclose(library);
  return ad_fail(AD_SYSTEM,
                 "the MPI module %s belongs to another version of addend; install the module and addend from one build",
                 path);
}

static ad_status load_named(const char *module, const char *started_by, const ad_mpi_transport **out) {
  places p;
  find_places(module, &p);
  for (int i = 0; i < p.count; i++)
    if (!access(p.text[i], R_OK)) return load_file(p.text[i], out);
  return ad_fail(
      AD_SYSTEM,
      "this rank was started by %s, but addend's module libaddend-mpi-%s.so for that launcher was not found in %s or "
      "the folders around; build addend where mpicc.%s is installed, or name the module's file in ADDEND_MPI_MODULE",
      started_by, module, p.count ? dirname(p.text[0]) : "the library's folder", module);
}

ad_status ad_mpi_load(const ad_mpi_transport **out) {
  const launcher *started_by = find_launcher();
  const char *wanted = getenv("ADDEND_MPI_MODULE");
  if (wanted && strchr(wanted, '/')) return load_file(wanted, out);
  if (wanted && *wanted) return load_named(wanted, "a launcher", out);
  if (started_by) return load_named(started_by->module, started_by->words, out);
  return ad_fail(AD_INVALID,
                 "srun started this process as task %s of %s without MPI, so the tasks cannot find each other; use "
                 "srun --mpi=pmix (Open MPI) or srun --mpi=pmi2 (MPICH)",
                 getenv("SLURM_PROCID"), getenv("SLURM_STEP_NUM_TASKS"));
}
