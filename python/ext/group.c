/* gpubridge._core.Group: the collectives of one group. Integers in; None, a
 * Work, or a source rank out. The last number of every call says whether it is
 * async. Nothing here waits with the GIL held. */
#include "core.h"

#include <string.h>

enum { NUMBERS_MAX = 8 };

typedef struct group_object {
  PyObject_HEAD
  PyObject *job;   /* its Job, kept */
  gb_group *group; /* NULL once closed */
  gb_group *owned; /* what close gives back; NULL: the world */
} group_object;

static core_state *state_of(PyObject *self) {
  return PyType_GetModuleState(Py_TYPE(self));
}

PyObject *core_group_new(core_state *state, PyObject *job, gb_group *group,
                         gb_group *owned) {
  group_object *self = PyObject_New(group_object, state->group_type);
  if (!self) {
    if (owned) (void)gb_group_close(owned, NULL);
    return NULL;
  }
  Py_INCREF(job);
  self->job = job;
  self->group = group;
  self->owned = owned;
  return (PyObject *)self;
}

/* The open group, or NULL with an exception. */
static gb_group *group_of(PyObject *self) {
  group_object *object = (group_object *)self;
  if (object->group && core_job_is_open(object->job)) return object->group;
  PyErr_SetString(PyExc_RuntimeError, "the group is closed");
  return NULL;
}

/* ---- calls ---- */

/* One call: its numbers, what else it takes, what it gives. */
typedef struct call {
  unsigned long long n[NUMBERS_MAX];
  double factor;
  size_t *out_counts, *in_counts; /* NULL: equal rows */
  int source;
  gb_group *group;
  gb_work *work;
  gb_error error;
} call;

static gb_buffer buffer_of(unsigned long long address, unsigned long long count,
                           unsigned long long dtype) {
  return (gb_buffer){(void *)(uintptr_t)address, (size_t)count,
                     (gb_dtype)dtype};
}

static int read_numbers(PyObject *const *args, Py_ssize_t given,
                        unsigned long long *out) {
  for (Py_ssize_t i = 0; i < given; i++)
    out[i] = PyLong_AsUnsignedLongLongMask(args[i]);
  return PyErr_Occurred() ? -1 : 0;
}

static int check_given(Py_ssize_t given, Py_ssize_t wanted) {
  if (given == wanted) return 0;
  PyErr_Format(PyExc_TypeError, "%zd arguments are wanted, not %zd", wanted,
               given);
  return -1;
}

/* A malloc'ed list of `world` sizes, or NULL for None. -1 with an exception. */
static int read_counts(PyObject *list, int world, size_t **counts_p) {
  *counts_p = NULL;
  if (list == Py_None) return 0;
  Py_ssize_t count = PySequence_Size(list);
  if (count < 0) return -1;
  if (count != world) {
    PyErr_Format(PyExc_ValueError, "%zd sizes are given for %d ranks", count,
                 world);
    return -1;
  }
  size_t *counts = PyMem_Malloc((size_t)world * sizeof *counts);
  if (!counts) {
    PyErr_NoMemory();
    return -1;
  }
  for (int i = 0; i < world; i++) {
    PyObject *item = PySequence_GetItem(list, i);
    counts[i] = item ? PyLong_AsSize_t(item) : 0;
    Py_XDECREF(item);
  }
  if (PyErr_Occurred()) {
    PyMem_Free(counts);
    return -1;
  }
  *counts_p = counts;
  return 0;
}

static PyObject *finish(PyObject *self, gb_status status, const call *c) {
  if (status != GB_OK) return core_raise(state_of(self), &c->error);
  if (c->work)
    return core_work_new(state_of(self), c->work,
                         core_job_works(((group_object *)self)->job), c->group);
  Py_RETURN_NONE;
}

/* One of the functions below: numbers to a call of the library. */
typedef gb_status (*call_fn)(call *c, gb_work **work_p);

/* `last`: index of the number that says async. */
static PyObject *run(PyObject *self, call *c, int last, call_fn fn) {
  gb_status status;
  c->work = NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = fn(c, c->n[last] ? &c->work : NULL);
  Py_END_ALLOW_THREADS;
  return finish(self, status, c);
}

/* Calls that take numbers only. */
static PyObject *run_numbers(PyObject *self, PyObject *const *args,
                             Py_ssize_t given, Py_ssize_t wanted, call_fn fn) {
  call c;
  c.group = group_of(self);
  if (!c.group || check_given(given, wanted) < 0 ||
      read_numbers(args, given, c.n) < 0)
    return NULL;
  return run(self, &c, (int)wanted - 1, fn);
}

static gb_status all_reduce(call *c, gb_work **work_p) {
  gb_buffer buffer = buffer_of(c->n[0], c->n[1], c->n[2]);
  return gb_all_reduce(c->group, &buffer, (gb_redop)c->n[3], work_p, &c->error);
}
static PyObject *group_all_reduce(PyObject *self, PyObject *const *args,
                                  Py_ssize_t given) {
  return run_numbers(self, args, given, 5, all_reduce);
}

static gb_status reduce(call *c, gb_work **work_p) {
  gb_buffer buffer = buffer_of(c->n[0], c->n[1], c->n[2]);
  return gb_reduce(c->group, &buffer, (gb_redop)c->n[3], (int)c->n[4], work_p,
                   &c->error);
}
static PyObject *group_reduce(PyObject *self, PyObject *const *args,
                              Py_ssize_t given) {
  return run_numbers(self, args, given, 6, reduce);
}

static gb_status broadcast(call *c, gb_work **work_p) {
  gb_buffer buffer = buffer_of(c->n[0], c->n[1], c->n[2]);
  return gb_broadcast(c->group, &buffer, (int)c->n[3], work_p, &c->error);
}
static PyObject *group_broadcast(PyObject *self, PyObject *const *args,
                                 Py_ssize_t given) {
  return run_numbers(self, args, given, 5, broadcast);
}

static gb_status all_gather(call *c, gb_work **work_p) {
  gb_buffer output = buffer_of(c->n[0], c->n[1], c->n[4]);
  gb_buffer input = buffer_of(c->n[2], c->n[3], c->n[4]);
  return gb_all_gather(c->group, &output, &input, work_p, &c->error);
}
static PyObject *group_all_gather(PyObject *self, PyObject *const *args,
                                  Py_ssize_t given) {
  return run_numbers(self, args, given, 6, all_gather);
}

static gb_status reduce_scatter(call *c, gb_work **work_p) {
  gb_buffer output = buffer_of(c->n[0], c->n[1], c->n[4]);
  gb_buffer input = buffer_of(c->n[2], c->n[3], c->n[4]);
  return gb_reduce_scatter(c->group, &output, &input, (gb_redop)c->n[5], work_p,
                           &c->error);
}
static PyObject *group_reduce_scatter(PyObject *self, PyObject *const *args,
                                      Py_ssize_t given) {
  return run_numbers(self, args, given, 7, reduce_scatter);
}

/* Whether this process is the group's rank `root`: the one with all rows. */
static int is_root(const call *c, unsigned long long root) {
  gb_group_info info = {.size = sizeof info};
  (void)gb_group_get_info(c->group, &info);
  return (unsigned long long)info.rank == root;
}

static gb_status gather(call *c, gb_work **work_p) {
  gb_buffer output = buffer_of(c->n[0], c->n[1], c->n[4]);
  gb_buffer input = buffer_of(c->n[2], c->n[3], c->n[4]);
  return gb_gather(c->group, is_root(c, c->n[5]) ? &output : NULL, &input,
                   (int)c->n[5], work_p, &c->error);
}
static PyObject *group_gather(PyObject *self, PyObject *const *args,
                              Py_ssize_t given) {
  return run_numbers(self, args, given, 7, gather);
}

static gb_status scatter(call *c, gb_work **work_p) {
  gb_buffer output = buffer_of(c->n[0], c->n[1], c->n[4]);
  gb_buffer input = buffer_of(c->n[2], c->n[3], c->n[4]);
  return gb_scatter(c->group, &output,
                    is_root(c, c->n[5]) ? &input : NULL, (int)c->n[5], work_p,
                    &c->error);
}
static PyObject *group_scatter(PyObject *self, PyObject *const *args,
                               Py_ssize_t given) {
  return run_numbers(self, args, given, 7, scatter);
}

static gb_status barrier(call *c, gb_work **work_p) {
  return gb_barrier(c->group, work_p, &c->error);
}
static PyObject *group_barrier(PyObject *self, PyObject *const *args,
                               Py_ssize_t given) {
  return run_numbers(self, args, given, 1, barrier);
}

/* ---- calls with a factor or with counts ---- */

/* Numbers with one float among them, at `at`. */
static PyObject *run_scaled(PyObject *self, PyObject *const *args,
                            Py_ssize_t given, Py_ssize_t wanted, int at,
                            call_fn fn) {
  call c;
  c.group = group_of(self);
  if (!c.group || check_given(given, wanted) < 0) return NULL;
  c.factor = PyFloat_AsDouble(args[at]);
  for (int i = 0; i < wanted; i++)
    c.n[i] = i == at ? 0 : PyLong_AsUnsignedLongLongMask(args[i]);
  if (PyErr_Occurred()) return NULL;
  return run(self, &c, (int)wanted - 1, fn);
}

static gb_status all_reduce_scaled(call *c, gb_work **work_p) {
  gb_buffer buffer = buffer_of(c->n[0], c->n[1], c->n[2]);
  return gb_all_reduce_scaled(c->group, &buffer, c->factor, work_p, &c->error);
}
static PyObject *group_all_reduce_scaled(PyObject *self, PyObject *const *args,
                                         Py_ssize_t given) {
  return run_scaled(self, args, given, 5, 3, all_reduce_scaled);
}

static gb_status reduce_scaled(call *c, gb_work **work_p) {
  gb_buffer buffer = buffer_of(c->n[0], c->n[1], c->n[2]);
  return gb_reduce_scaled(c->group, &buffer, c->factor, (int)c->n[4], work_p,
                          &c->error);
}
static PyObject *group_reduce_scaled(PyObject *self, PyObject *const *args,
                                     Py_ssize_t given) {
  return run_scaled(self, args, given, 6, 3, reduce_scaled);
}

static gb_status reduce_scatter_scaled(call *c, gb_work **work_p) {
  gb_buffer output = buffer_of(c->n[0], c->n[1], c->n[4]);
  gb_buffer input = buffer_of(c->n[2], c->n[3], c->n[4]);
  return gb_reduce_scatter_scaled(c->group, &output, &input, c->factor, work_p,
                                  &c->error);
}
static PyObject *group_reduce_scatter_scaled(PyObject *self,
                                             PyObject *const *args,
                                             Py_ssize_t given) {
  return run_scaled(self, args, given, 7, 5, reduce_scatter_scaled);
}

/* Numbers with one or two lists of counts, from `at` on. Lists that must be
 * given, where None is not equal parts, are refused by the library. */
static PyObject *run_counts(PyObject *self, PyObject *const *args,
                            Py_ssize_t given, Py_ssize_t wanted, int at,
                            int lists, call_fn fn) {
  call c;
  c.group = group_of(self);
  if (!c.group || check_given(given, wanted) < 0) return NULL;
  c.out_counts = c.in_counts = NULL;
  gb_group_info info = {.size = sizeof info};
  (void)gb_group_get_info(c.group, &info);
  int failed = read_counts(args[at], info.count, &c.out_counts) < 0;
  if (!failed && lists == 2)
    failed = read_counts(args[at + 1], info.count, &c.in_counts) < 0;
  for (int i = 0; !failed && i < wanted; i++)
    if (i < at || i >= at + lists)
      c.n[i] = PyLong_AsUnsignedLongLongMask(args[i]);
  PyObject *result = NULL;
  if (!failed && !PyErr_Occurred())
    result = run(self, &c, (int)wanted - 1, fn);
  PyMem_Free(c.out_counts);
  PyMem_Free(c.in_counts);
  return result;
}

static gb_status all_gather_v(call *c, gb_work **work_p) {
  gb_buffer output = buffer_of(c->n[0], c->n[1], c->n[4]);
  gb_buffer input = buffer_of(c->n[2], c->n[3], c->n[4]);
  return gb_all_gather_v(c->group, &output, &input, c->out_counts, work_p,
                         &c->error);
}
static PyObject *group_all_gather_v(PyObject *self, PyObject *const *args,
                                    Py_ssize_t given) {
  return run_counts(self, args, given, 7, 5, 1, all_gather_v);
}

static gb_status reduce_scatter_v(call *c, gb_work **work_p) {
  gb_buffer output = buffer_of(c->n[0], c->n[1], c->n[4]);
  gb_buffer input = buffer_of(c->n[2], c->n[3], c->n[4]);
  return gb_reduce_scatter_v(c->group, &output, &input, c->out_counts,
                             (gb_redop)c->n[6], work_p, &c->error);
}
static PyObject *group_reduce_scatter_v(PyObject *self, PyObject *const *args,
                                        Py_ssize_t given) {
  return run_counts(self, args, given, 8, 5, 1, reduce_scatter_v);
}

static gb_status all_to_all(call *c, gb_work **work_p) {
  gb_buffer output = buffer_of(c->n[0], c->n[1], c->n[4]);
  gb_buffer input = buffer_of(c->n[2], c->n[3], c->n[4]);
  return gb_all_to_all(c->group, &output, c->out_counts, &input, c->in_counts,
                       work_p, &c->error);
}
static PyObject *group_all_to_all(PyObject *self, PyObject *const *args,
                                  Py_ssize_t given) {
  return run_counts(self, args, given, 8, 5, 2, all_to_all);
}

/* ---- point-to-point ---- */

static gb_status send_one(call *c, gb_work **work_p) {
  gb_buffer buffer = buffer_of(c->n[0], c->n[1], c->n[2]);
  return gb_send(c->group, &buffer, (int)c->n[3], c->n[4], work_p, &c->error);
}
static PyObject *group_send(PyObject *self, PyObject *const *args,
                            Py_ssize_t given) {
  return run_numbers(self, args, given, 6, send_one);
}

static gb_status recv_one(call *c, gb_work **work_p) {
  gb_buffer buffer = buffer_of(c->n[0], c->n[1], c->n[2]);
  return gb_recv(c->group, &buffer, (int)c->n[3], c->n[4], &c->source, work_p,
                 &c->error);
}
/* A sync receive gives its source. */
static PyObject *group_recv(PyObject *self, PyObject *const *args,
                            Py_ssize_t given) {
  call c;
  c.group = group_of(self);
  c.source = -1;
  if (!c.group || check_given(given, 6) < 0 ||
      read_numbers(args, given, c.n) < 0)
    return NULL;
  PyObject *result = run(self, &c, 5, recv_one);
  if (result != Py_None) return result;
  Py_DECREF(result);
  return PyLong_FromLong(c.source);
}

/* One row of a batch: (is_send, address, count, dtype, peer, tag). */
static int read_message(PyObject *row, gb_p2p_op *op) {
  unsigned long long n[6];
  for (int i = 0; i < 6; i++) {
    PyObject *item = PySequence_GetItem(row, i);
    n[i] = item ? PyLong_AsUnsignedLongLongMask(item) : 0;
    Py_XDECREF(item);
    if (PyErr_Occurred()) return -1;
  }
  *op = (gb_p2p_op){n[0] != 0, buffer_of(n[1], n[2], n[3]), (int)n[4], n[5]};
  return 0;
}

static PyObject *group_batch(PyObject *self, PyObject *args) {
  PyObject *rows;
  int is_async, failed = 0;
  gb_group *group = group_of(self);
  if (!group || !PyArg_ParseTuple(args, "Op", &rows, &is_async)) return NULL;
  Py_ssize_t count = PySequence_Size(rows);
  if (count < 0) return NULL;
  gb_p2p_op *ops = PyMem_Malloc((size_t)(count + 1) * sizeof *ops);
  if (!ops) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < count && !failed; i++) {
    PyObject *row = PySequence_GetItem(rows, i);
    failed = !row || read_message(row, &ops[i]) < 0;
    Py_XDECREF(row);
  }
  call c = {.group = group, .work = NULL};
  gb_status status = GB_OK;
  if (!failed) {
    Py_BEGIN_ALLOW_THREADS;
    status = gb_batch(group, ops, (int)count, is_async ? &c.work : NULL,
                      &c.error);
    Py_END_ALLOW_THREADS;
  }
  PyMem_Free(ops);
  return failed ? NULL : finish(self, status, &c);
}

/* ---- life ---- */

static PyObject *group_serve(PyObject *self, PyObject *unused) {
  call c;
  gb_status status;
  gb_group *group = group_of(self);
  if (!group) return NULL;
  c.work = NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = gb_group_serve(group, &c.error);
  Py_END_ALLOW_THREADS;
  if (PyErr_Occurred()) return NULL; /* a part's SystemExit or the like */
  return finish(self, status, &c);
}

static PyObject *group_set_timeout(PyObject *self, PyObject *arg) {
  gb_group *group = group_of(self);
  unsigned long long timeout_ms = PyLong_AsUnsignedLongLong(arg);
  if (!group || PyErr_Occurred()) return NULL;
  (void)gb_group_set_timeout(group, timeout_ms);
  Py_RETURN_NONE;
}

static PyObject *group_calls(PyObject *self, PyObject *unused) {
  gb_group *group = group_of(self);
  return group ? PyLong_FromUnsignedLongLong(gb_group_calls(group)) : NULL;
}

static PyObject *group_check(PyObject *self, PyObject *unused) {
  gb_group *group = group_of(self);
  gb_error error;
  if (!group) return NULL;
  if (gb_group_check(group, &error) != GB_OK)
    return core_raise(state_of(self), &error);
  Py_RETURN_NONE;
}

static PyObject *group_close(PyObject *self, PyObject *unused) {
  group_object *object = (group_object *)self;
  gb_group *owned = object->owned;
  int open = object->group && core_job_is_open(object->job);
  object->group = object->owned = NULL;
  if (!owned || !open) Py_RETURN_NONE;
  core_works_end(core_job_works(object->job), owned);
  gb_error error;
  gb_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = gb_group_close(owned, &error);
  Py_END_ALLOW_THREADS;
  if (status != GB_OK && status != GB_ERR_FORKED)
    return core_raise(state_of(self), &error);
  Py_RETURN_NONE;
}

static void group_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  /* An owned group that nobody closed stays open until its job closes: a
   * destructor must not wait for a queue. */
  Py_DECREF(((group_object *)self)->job);
  PyObject_Free(self);
  Py_DECREF(type);
}

static PyObject *tuple_of(const int *list, int count) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; i++)
    PyTuple_SetItem(tuple, i, PyLong_FromLong(list[i]));
  return tuple;
}

static PyObject *group_info(PyObject *self, PyObject *unused) {
  gb_group *group = group_of(self);
  if (!group) return NULL;
  gb_group_info info = {.size = sizeof info};
  (void)gb_group_get_info(group, &info);
  return Py_BuildValue("{s:i,s:i,s:N,s:I,s:s,s:s,s:i,s:N,s:i,s:N}", "rank",
                       info.rank, "count", info.count, "ranks",
                       tuple_of(info.ranks, info.count), "id", info.id,
                       "policy", info.policy, "bridge", info.bridge,
                       "islands_count", info.islands_count, "island_of",
                       tuple_of(info.island_of, info.count), "hosts_count",
                       info.hosts_count, "host_of",
                       tuple_of(info.host_of, info.count));
}

static PyMethodDef group_methods[] = {
    {"all_reduce", CORE_FAST(group_all_reduce), METH_FASTCALL,
     "all_reduce(address, count, dtype, op, is_async)"},
    {"broadcast", CORE_FAST(group_broadcast), METH_FASTCALL,
     "broadcast(address, count, dtype, root, is_async)"},
    {"all_gather", CORE_FAST(group_all_gather), METH_FASTCALL,
     "all_gather(out_address, out_count, in_address, in_count, dtype,\n"
     "is_async)"},
    {"reduce_scatter", CORE_FAST(group_reduce_scatter), METH_FASTCALL,
     "reduce_scatter(out_address, out_count, in_address, in_count, dtype,\n"
     "op, is_async)"},
    {"reduce", CORE_FAST(group_reduce), METH_FASTCALL,
     "reduce(address, count, dtype, op, root, is_async)"},
    {"all_reduce_scaled", CORE_FAST(group_all_reduce_scaled), METH_FASTCALL,
     "all_reduce_scaled(address, count, dtype, factor, is_async)"},
    {"reduce_scaled", CORE_FAST(group_reduce_scaled), METH_FASTCALL,
     "reduce_scaled(address, count, dtype, factor, root, is_async)"},
    {"reduce_scatter_scaled", CORE_FAST(group_reduce_scatter_scaled),
     METH_FASTCALL,
     "reduce_scatter_scaled(out_address, out_count, in_address, in_count,\n"
     "dtype, factor, is_async)"},
    {"all_gather_v", CORE_FAST(group_all_gather_v), METH_FASTCALL,
     "all_gather_v(out_address, out_count, in_address, in_count, dtype,\n"
     "counts, is_async)"},
    {"reduce_scatter_v", CORE_FAST(group_reduce_scatter_v), METH_FASTCALL,
     "reduce_scatter_v(out_address, out_count, in_address, in_count, dtype,\n"
     "counts, op, is_async)"},
    {"gather", CORE_FAST(group_gather), METH_FASTCALL,
     "gather(out_address, out_count, in_address, in_count, dtype, root,\n"
     "is_async); 0, 0 for an output that is not this rank's"},
    {"scatter", CORE_FAST(group_scatter), METH_FASTCALL,
     "scatter(out_address, out_count, in_address, in_count, dtype, root,\n"
     "is_async); 0, 0 for an input that is not this rank's"},
    {"all_to_all", CORE_FAST(group_all_to_all), METH_FASTCALL,
     "all_to_all(out_address, out_count, in_address, in_count, dtype,\n"
     "out_counts, in_counts, is_async); counts: None for equal parts"},
    {"barrier", CORE_FAST(group_barrier), METH_FASTCALL, "barrier(is_async)"},
    {"send", CORE_FAST(group_send), METH_FASTCALL,
     "send(address, count, dtype, peer, tag, is_async)"},
    {"recv", CORE_FAST(group_recv), METH_FASTCALL,
     "recv(address, count, dtype, peer, tag, is_async); peer -1: any rank.\n"
     "Sync: the group rank it came from."},
    {"batch", group_batch, METH_VARARGS,
     "batch([(is_send, address, count, dtype, peer, tag), ...], is_async)"},
    {"serve", group_serve, METH_NOARGS,
     "Runs async calls on this thread until the group is closed."},
    {"set_timeout", group_set_timeout, METH_O,
     "set_timeout(milliseconds): bounds every later call; 0: the job's."},
    {"calls", group_calls, METH_NOARGS, "Calls it has started."},
    {"check", group_check, METH_NOARGS,
     "Raises what calls are refused with once the job failed. Never blocks."},
    {"close", group_close, METH_NOARGS,
     "Runs what is queued and gives the group back. Again: no-op."},
    {"info", group_info, METH_NOARGS, "Members, islands, policy, as a dict."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot group_slots[] = {
    {Py_tp_doc, "Some ranks that call collectives together."},
    {Py_tp_methods, group_methods},
    {Py_tp_dealloc, group_dealloc},
    {0, NULL}};

static PyType_Spec group_spec = {
    .name = "gpubridge._core.Group",
    .basicsize = sizeof(group_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = group_slots,
};

int core_add_group(PyObject *module, core_state *state) {
  state->group_type =
      (PyTypeObject *)PyType_FromModuleAndSpec(module, &group_spec, NULL);
  if (!state->group_type) return -1;
  return PyModule_AddType(module, state->group_type);
}
