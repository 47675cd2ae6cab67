/* The CPython extension gpubridge._core: one file per object, per-module state,
 * limited API of 3.10, no torch inside. Tensors come as integers (address,
 * element count, dtype code). Everything that can wait runs without the GIL;
 * waits look for signals ten times a second through the job's wait hook. No
 * thread of the library ever calls Python: callbacks run on threads that came
 * from Python (the caller's, or the one inside Job.serve). */
#ifndef GPUBRIDGE_EXT_CORE_H
#define GPUBRIDGE_EXT_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <gpubridge/gpubridge.h>

typedef struct core_state {
  PyObject *error;     /* gpubridge._core.Error, a RuntimeError */
  PyObject *cause;     /* what Python code of a part raised here, or NULL */
  PyTypeObject *job_type;
  PyTypeObject *group_type;
  PyTypeObject *work_type;
} core_state;

extern PyModuleDef core_module;

#define CORE_FAST(function) ((PyCFunction)(void (*)(void))(function))

/* Raises for a failed status; keeps an exception that is already set (a signal
 * handler's). Returns NULL. */
PyObject *core_raise(core_state *state, const gb_error *error);

int core_add_job(PyObject *module, core_state *state);
int core_add_group(PyObject *module, core_state *state);
/* A Group object of `job` (a Job, kept). owned: what its close gives back, NULL
 * for the world, which is the job's. */
PyObject *core_group_new(core_state *state, PyObject *job, gb_group *group,
                         gb_group *owned);
int core_job_is_open(PyObject *job);
int core_add_work(PyObject *module, core_state *state);

/* The handles of a job on a GPU: their events are the library's, so that it
 * must have them all back before what they belong to is closed. */
typedef struct core_works core_works;
struct core_works {
  core_works *previous, *next;
};
/* NULL: of a job on host memory, whose handles outlive it. */
core_works *core_job_works(PyObject *job);
/* works: may be NULL. group: whose it is, borrowed. */
PyObject *core_work_new(core_state *state, gb_work *work, core_works *works,
                        gb_group *group);
/* Gives back those of `group`, or with NULL all: what is not done by now counts
 * as failed. */
void core_works_end(core_works *works, const gb_group *group);

/* A store given by Python: an object with set(key, bytes) and get(key,
 * timeout_ms) -> bytes or None. */
void core_store_fill(gb_store *store, PyObject *object);

/* The job's parts in Python (gpubridge/parts.py): its callbacks live as long as
 * the job. */
typedef struct core_parts {
  core_state *state;
  PyObject *object;
  gb_bridge_ops bridge;
  gb_policy_ops policy;
} core_parts;

/* object and state are set. Texts are kept in the list `held`. -1 with an
 * exception. */
int core_parts_fill(core_parts *parts, PyObject *held, gb_job_params *params);

#endif
