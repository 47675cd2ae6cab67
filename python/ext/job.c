/* gpubridge._core.Job: one open job. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

enum { PAIRS_MAX = 64, PROBLEMS_MAX = 16, IN_FLIGHT_MAX = 32 };

typedef struct job_object {
  PyObject_HEAD gb_job *job; /* NULL once closed */
  PyObject *observer;        /* callable, or NULL */
  core_parts *parts;         /* or NULL */
  core_works works;          /* a ring; next NULL: of a job on host memory */
} job_object;

static core_state *state_of(PyObject *self) {
  return PyType_GetModuleState(Py_TYPE(self));
}

/* ---- open ---- */

/* Runs on the caller's thread, whose GIL is released: takes it to let signal
 * handlers run. Their exception stays set and ends the wait. */
static int check_signals(void *arg) {
  PyGILState_STATE gil = PyGILState_Ensure();
  int code = PyErr_CheckSignals();
  PyGILState_Release(gil);
  return code;
}

typedef struct open_args {
  gb_job_params params;
  gb_pair facts[PAIRS_MAX];
  const char *problems[PROBLEMS_MAX];
  gb_store store;
  PyObject *held; /* a list of the bytes that the pointers point into */
} open_args;

/* A C string that lives as long as args->held. */
static const char *hold_text(open_args *args, PyObject *text) {
  PyObject *raw = PyUnicode_AsUTF8String(text);
  if (!raw) return NULL;
  int failed = PyList_Append(args->held, raw);
  Py_DECREF(raw);
  return failed ? NULL : PyBytes_AsString(raw);
}

static int fill_facts(open_args *args, PyObject *facts) {
  Py_ssize_t count = PyList_Size(facts);
  if (count < 0) return -1;
  if (count > PAIRS_MAX) count = PAIRS_MAX;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *pair = PyList_GetItem(facts, i);
    PyObject *name = PyTuple_GetItem(pair, 0);
    PyObject *value = PyTuple_GetItem(pair, 1);
    if (!name || !value) return -1;
    args->facts[i].name = hold_text(args, name);
    args->facts[i].value = hold_text(args, value);
    if (!args->facts[i].name || !args->facts[i].value) return -1;
  }
  args->params.facts = args->facts;
  args->params.facts_count = (size_t)count;
  return 0;
}

static int fill_problems(open_args *args, PyObject *problems) {
  Py_ssize_t count = PyList_Size(problems);
  if (count < 0) return -1;
  if (count > PROBLEMS_MAX) count = PROBLEMS_MAX;
  for (Py_ssize_t i = 0; i < count; i++) {
    args->problems[i] = hold_text(args, PyList_GetItem(problems, i));
    if (!args->problems[i]) return -1;
  }
  args->params.problems = args->problems;
  args->params.problems_count = (size_t)count;
  return 0;
}

static void free_parts(core_parts *parts) {
  if (!parts) return;
  Py_DECREF(parts->object);
  PyMem_Free(parts);
}

/* *parts_p is NULL for None; freed with the job. */
static int fill_parts(open_args *args, core_state *state, PyObject *object,
                      core_parts **parts_p) {
  if (object == Py_None) return 0;
  core_parts *parts = PyMem_Calloc(1, sizeof *parts);
  if (!parts) {
    PyErr_NoMemory();
    return -1;
  }
  Py_INCREF(object);
  parts->object = object;
  parts->state = state;
  *parts_p = parts;
  return core_parts_fill(parts, args->held, &args->params);
}

static PyObject *job_new(PyTypeObject *type, PyObject *positional,
                         PyObject *named) {
  static char *names[] = {"init_method", "rank",   "world_size", "timeout_ms",
                          "bridge",      "policy", "vendor",     "facts",
                          "problems",    "store",  "attempt",    "parts",
                          "device",      NULL};
  open_args args = {.params = GB_JOB_PARAMS_INIT};
  unsigned long long timeout_ms = 0;
  PyObject *facts, *problems, *store, *parts;
  if (!PyArg_ParseTupleAndKeywords(
          positional, named, "ziiKzzzO!O!OzO|i", names,
          &args.params.init_method, &args.params.rank, &args.params.world_size,
          &timeout_ms, &args.params.bridge, &args.params.policy,
          &args.params.vendor, &PyList_Type, &facts, &PyList_Type, &problems,
          &store, &args.params.attempt, &parts, &args.params.device))
    return NULL;
  args.params.timeout_ms = timeout_ms;
  args.params.wait_hook = check_signals;
  args.held = PyList_New(0);
  gb_job *job = NULL;
  gb_error error;
  gb_status status = GB_ERR_ARGUMENT;
  core_state *state = PyType_GetModuleState(type);
  if (!args.held) return NULL;
  Py_CLEAR(state->cause);
  core_parts *own = NULL;
  if (fill_parts(&args, state, parts, &own) == 0 &&
      fill_facts(&args, facts) == 0 && fill_problems(&args, problems) == 0) {
    if (store != Py_None) {
      core_store_fill(&args.store, store);
      args.params.store = &args.store;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = gb_job_open(&args.params, &job, &error);
    Py_END_ALLOW_THREADS;
    if (status != GB_OK) core_raise(state, &error);
  }
  Py_DECREF(args.held);
  job_object *self = NULL;
  if (status == GB_OK) {
    self = PyObject_New(job_object, type);
    if (!self) (void)gb_job_close(job, NULL);
  }
  if (!self) {
    free_parts(own);
    return NULL;
  }
  self->job = job;
  self->parts = own;
  self->observer = NULL;
  gb_job_info info = {.size = sizeof info};
  (void)gb_job_get_info(job, &info);
  core_works *ring = &self->works;
  if (args.params.device < 0 || info.simulated) ring = NULL;
  self->works = (core_works){ring, ring};
  return (PyObject *)self;
}

/* The open job, or NULL with an exception. */
static gb_job *job_of(PyObject *self) {
  gb_job *job = ((job_object *)self)->job;
  if (!job) PyErr_SetString(PyExc_RuntimeError, "the job is closed");
  return job;
}

core_works *core_job_works(PyObject *job) {
  job_object *self = (job_object *)job;
  return self->works.next ? &self->works : NULL;
}

int core_job_is_open(PyObject *job) {
  return ((job_object *)job)->job != NULL;
}

static PyObject *job_close(PyObject *self, PyObject *unused) {
  job_object *object = (job_object *)self;
  gb_job *job = object->job;
  if (!job) Py_RETURN_NONE;
  core_works_end(core_job_works(self), NULL);
  gb_status status;
  gb_error error;
  Py_BEGIN_ALLOW_THREADS;
  status = gb_job_close(job, &error);
  Py_END_ALLOW_THREADS;
  object->job = NULL; /* in a forked child too: it is not its own */
  if (status != GB_OK && status != GB_ERR_FORKED)
    return core_raise(state_of(self), &error);
  Py_RETURN_NONE;
}

static void job_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  job_object *object = (job_object *)self;
  if (object->job) {
    core_works_end(core_job_works(self), NULL);
    Py_BEGIN_ALLOW_THREADS;
    (void)gb_job_close(object->job, NULL);
    Py_END_ALLOW_THREADS;
  }
  Py_XDECREF(object->observer);
  free_parts(object->parts);
  PyObject_Free(self);
  Py_DECREF(type);
}

/* ---- groups ---- */

static PyObject *job_world(PyObject *self, PyObject *unused) {
  gb_job *job = job_of(self);
  if (!job) return NULL;
  return core_group_new(state_of(self), self, gb_job_world(job), NULL);
}

/* A malloc'ed copy of a sequence of ranks; NULL with an exception. */
static int *read_ranks(PyObject *sequence, Py_ssize_t *count_p) {
  Py_ssize_t count = PySequence_Size(sequence);
  *count_p = count;
  if (count < 0) return NULL;
  int *ranks = PyMem_Malloc((size_t)(count + 1) * sizeof *ranks);
  if (!ranks) PyErr_NoMemory();
  for (Py_ssize_t i = 0; ranks && i < count; i++) {
    PyObject *item = PySequence_GetItem(sequence, i);
    long rank = item ? PyLong_AsLong(item) : -1;
    Py_XDECREF(item);
    ranks[i] = rank < -1 || rank > INT32_MAX ? -1 : (int)rank;
    if (!PyErr_Occurred()) continue;
    PyMem_Free(ranks);
    ranks = NULL;
  }
  return ranks;
}

static PyObject *job_open_group(PyObject *self, PyObject *args) {
  gb_job *job = job_of(self);
  PyObject *list;
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  unsigned long long timeout_ms;
  if (!job || !PyArg_ParseTuple(args, "OzKz", &list, &params.name, &timeout_ms,
                                &params.policy))
    return NULL;
  params.timeout_ms = timeout_ms;
  Py_ssize_t count;
  int *ranks = read_ranks(list, &count);
  if (!ranks) return NULL;
  gb_group *group = NULL;
  gb_status status;
  gb_error error;
  Py_BEGIN_ALLOW_THREADS;
  status = gb_group_open(job, ranks, (int)count, &params, &group, &error);
  Py_END_ALLOW_THREADS;
  PyMem_Free(ranks);
  if (status != GB_OK) return core_raise(state_of(self), &error);
  return core_group_new(state_of(self), self, group, group);
}

static PyObject *job_abort(PyObject *self, PyObject *reason) {
  gb_job *job = job_of(self);
  if (!job) return NULL;
  PyObject *raw = PyUnicode_AsUTF8String(reason);
  if (!raw) return NULL;
  gb_job_abort(job, PyBytes_AsString(raw));
  Py_DECREF(raw);
  Py_RETURN_NONE;
}

/* ---- what the job knows ---- */

static PyObject *tuple_of(const int *ranks, int count) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; i++)
    PyTuple_SetItem(tuple, i, PyLong_FromLong(ranks[i]));
  return tuple;
}

static PyObject *island_dict(gb_job *job, int index) {
  gb_island_info info = {.size = sizeof info};
  if (gb_job_get_island(job, index, &info) != GB_OK) Py_RETURN_NONE;
  return Py_BuildValue("{s:s,s:N,s:i,s:N}", "label", info.label, "ranks",
                       tuple_of(info.ranks, info.ranks_count), "leader",
                       info.leader, "holders",
                       tuple_of(info.holders, info.ranks_count));
}

static PyObject *peer_dict(gb_job *job, int rank) {
  gb_peer_info info = {.size = sizeof info};
  if (gb_job_get_peer(job, rank, &info) != GB_OK) Py_RETURN_NONE;
  PyObject *facts = PyDict_New();
  for (size_t i = 0; facts && i < info.facts_count; i++) {
    PyObject *value = PyUnicode_FromString(info.facts[i].value);
    if (!value || PyDict_SetItemString(facts, info.facts[i].name, value) < 0)
      Py_CLEAR(facts);
    Py_XDECREF(value);
  }
  PyObject *rdma = Py_BuildValue(
      "{s:i,s:i,s:s,s:s,s:i,s:s,s:s}", "asked", info.rdma_asked, "usable",
      info.rdma_usable, "reason", info.rdma_reason, "device", info.rdma_device,
      "port", info.rdma_port, "link_layer", info.rdma_link_layer, "address",
      info.rdma_address);
  return Py_BuildValue("{s:s,s:s,s:s,s:i,s:N,s:N}", "vendor", info.vendor,
                       "detected_vendor", info.detected_vendor, "hostname",
                       info.hostname, "island", info.island, "facts", facts,
                       "rdma", rdma);
}

static PyObject *list_of(gb_job *job, int count,
                         PyObject *(*make)(gb_job *job, int index)) {
  PyObject *list = PyList_New(count);
  for (int i = 0; list && i < count; i++) {
    PyObject *item = make(job, i);
    if (!item) {
      Py_CLEAR(list);
      break;
    }
    PyList_SetItem(list, i, item);
  }
  return list;
}

static PyObject *job_info(PyObject *self, PyObject *unused) {
  gb_job *job = job_of(self);
  if (!job) return NULL;
  gb_job_info info = {.size = sizeof info};
  (void)gb_job_get_info(job, &info);
  return Py_BuildValue(
      "{s:i,s:i,s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:s,s:s,s:s,s:s,s:K,s:i,s:N,"
      "s:N}",
      "rank", info.rank, "world_size", info.world_size, "vendor", info.vendor,
      "detected_vendor", info.detected_vendor, "run_kind", info.run_kind,
      "split_test", info.split_test, "hostname", info.hostname, "simulated",
      info.simulated, "island", info.island, "is_leader", info.is_leader,
      "bridge_requested", info.bridge_requested, "bridge", info.bridge,
      "bridge_reason", info.bridge_reason, "policy", info.policy, "timeout_ms",
      (unsigned long long)info.timeout_ms, "links", info.links, "islands",
      list_of(job, info.islands_count, island_dict), "peers",
      list_of(job, info.world_size, peer_dict));
}

static PyObject *in_flight_dict(const gb_in_flight *entry) {
  PyObject *done = PyTuple_New(entry->phases_done_count);
  for (int i = 0; done && i < entry->phases_done_count; i++)
    PyTuple_SetItem(done, i, PyUnicode_FromString(entry->phases_done[i]));
  return Py_BuildValue("{s:K,s:s,s:z,s:z,s:N,s:s,s:d,s:I}", "seq",
                       (unsigned long long)entry->seq, "op", entry->op,
                       "policy", entry->policy, "phase", entry->phase,
                       "phases_done", done, "thread", entry->thread, "seconds",
                       (double)entry->age_ns / 1e9, "group", entry->group);
}

static PyObject *job_in_flight(PyObject *self, PyObject *unused) {
  gb_job *job = job_of(self);
  if (!job) return NULL;
  gb_in_flight entries[IN_FLIGHT_MAX];
  int count = gb_job_in_flight(job, entries, IN_FLIGHT_MAX);
  PyObject *list = PyList_New(count);
  for (int i = 0; list && i < count; i++) {
    PyObject *item = in_flight_dict(&entries[i]);
    if (!item) {
      Py_CLEAR(list);
      break;
    }
    PyList_SetItem(list, i, item);
  }
  return list;
}

static void add_fact(void *arg, const char *name, const char *value) {
  if (PyErr_Occurred()) return;
  PyObject *text =
      PyUnicode_DecodeUTF8(value, (Py_ssize_t)strlen(value), "replace");
  if (text) PyDict_SetItemString(arg, name, text);
  Py_XDECREF(text);
}

static PyObject *job_telemetry(PyObject *self, PyObject *unused) {
  gb_job *job = job_of(self);
  if (!job) return NULL;
  PyObject *dict = PyDict_New();
  if (dict) gb_job_telemetry(job, add_fact, dict);
  if (PyErr_Occurred()) Py_CLEAR(dict);
  return dict;
}

/* ---- observer ---- */

static PyObject *record_dict(const gb_record *r) {
  PyObject *phases = PyTuple_New(r->phases_count);
  for (int i = 0; phases && i < r->phases_count; i++)
    PyTuple_SetItem(phases, i,
                    Py_BuildValue("(sKK)", r->phases[i].name,
                                  (unsigned long long)r->phases[i].start_ns,
                                  (unsigned long long)r->phases[i].end_ns));
  return Py_BuildValue("{s:K,s:s,s:K,s:i,s:i,s:i,s:z,s:K,s:K,s:N,s:I}", "seq",
                       (unsigned long long)r->seq, "op", r->op, "nbytes",
                       (unsigned long long)r->bytes, "dtype", r->dtype, "redop",
                       r->redop, "root", r->root, "policy", r->policy,
                       "start_ns", (unsigned long long)r->start_ns, "end_ns",
                       (unsigned long long)r->end_ns, "phases", phases, "group",
                       r->group);
}

/* On a thread that came from Python, without its GIL. Messages may end on a
 * thread of the library, which must not call Python: they are not told. */
static int observe(void *arg, const gb_record *record) {
  if (!strcmp(record->op, "send") || !strcmp(record->op, "recv")) return 0;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *observer = ((job_object *)arg)->observer;
  PyObject *dict = observer ? record_dict(record) : NULL;
  if (dict) {
    Py_INCREF(observer);
    PyObject *result = PyObject_CallFunctionObjArgs(observer, dict, NULL);
    if (!result) PyErr_WriteUnraisable(observer);
    Py_XDECREF(result);
    Py_DECREF(observer);
    Py_DECREF(dict);
  }
  PyGILState_Release(gil);
  return 0;
}

static PyObject *job_set_observer(PyObject *self, PyObject *observer) {
  job_object *object = (job_object *)self;
  gb_job *job = job_of(self);
  if (!job) return NULL;
  gb_error error;
  PyObject *old = object->observer;
  if (observer == Py_None) {
    object->observer = NULL;
    gb_observer_remove(job, observe, self);
  } else {
    Py_INCREF(observer);
    object->observer = observer;
    if (gb_observer_add(job, observe, self, &error) != GB_OK) {
      object->observer = old;
      Py_DECREF(observer);
      return core_raise(state_of(self), &error);
    }
  }
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

static PyMethodDef job_methods[] = {
    {"world", job_world, METH_NOARGS, "The Group of all ranks."},
    {"open_group", job_open_group, METH_VARARGS,
     "open_group(ranks, name, timeout_ms, policy): a Group of some ranks; all\n"
     "members call it."},
    {"abort", job_abort, METH_O, "abort(reason): ends the job on every rank."},
    {"close", job_close, METH_NOARGS, "Leaves the job. Again: no-op."},
    {"info", job_info, METH_NOARGS, "Layout and choices, as a dict."},
    {"in_flight", job_in_flight, METH_NOARGS, "Calls that run now."},
    {"telemetry", job_telemetry, METH_NOARGS, "Facts and counters."},
    {"set_observer", job_set_observer, METH_O,
     "A callable that gets each record as a dict, or None."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot job_slots[] = {
    {Py_tp_doc, "One open job. Constructing it joins."},
    {Py_tp_new, job_new},
    {Py_tp_methods, job_methods},
    {Py_tp_dealloc, job_dealloc},
    {0, NULL}};

static PyType_Spec job_spec = {
    .name = "gpubridge._core.Job",
    .basicsize = sizeof(job_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = job_slots,
};

int core_add_job(PyObject *module, core_state *state) {
  state->job_type =
      (PyTypeObject *)PyType_FromModuleAndSpec(module, &job_spec, NULL);
  if (!state->job_type) return -1;
  return PyModule_AddType(module, state->job_type);
}
