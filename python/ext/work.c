/* gpubridge._core.Work: the handle of one async call. */
#include "core.h"

#include <stddef.h>
#include <time.h>

typedef struct work_object {
  PyObject_HEAD
  gb_work *work;   /* NULL: given back */
  core_works link; /* in its job's list; next NULL: in none */
  gb_group *group; /* while it is in the list */
  long long seq;   /* once it is given back, as is the next */
  int failed;      /* it was not done by then */
  int ended;       /* well, before the job failed, if it did */
  int waiting;     /* threads that use `work` without the GIL */
} work_object;

static core_state *state_of(PyObject *self) {
  return PyType_GetModuleState(Py_TYPE(self));
}

static void unlink_work(work_object *self) {
  if (!self->link.next) return;
  self->link.previous->next = self->link.next;
  self->link.next->previous = self->link.previous;
  self->link.next = self->link.previous = NULL;
}

PyObject *core_work_new(core_state *state, gb_work *work, core_works *works,
                        gb_group *group) {
  work_object *self = PyObject_New(work_object, state->work_type);
  if (!self) {
    gb_work_release(work);
    return NULL;
  }
  self->work = work;
  self->group = group;
  self->failed = self->waiting = self->ended = 0;
  self->link.next = self->link.previous = NULL;
  if (works) {
    self->link = (core_works){works->previous, works};
    works->previous->next = &self->link;
    works->previous = &self->link;
  }
  return (PyObject *)self;
}

/* A job that fails lets its streams go on, which may end a call before its
 * handle knows of the failure: then the group does. */
static gb_status check_group(work_object *self, gb_error *error) {
  if (!self->link.next || self->ended) return GB_OK;
  return gb_group_check(self->group, error);
}

/* Whether it has ended, in success or failure. A call that failed on a GPU may
 * still be on its streams. */
static int has_ended(work_object *self, gb_status *status_p, gb_error *error) {
  int done = 0;
  gb_status status = gb_work_test(self->work, &done, error);
  if (status == GB_OK && done) status = check_group(self, error);
  if (status == GB_OK && done) self->ended = 1;
  *status_p = status;
  return done || (status != GB_OK && status != GB_ERR_FORKED);
}

/* Waits of other threads on a GPU end soon: they enqueue. */
static void await_waiters(const work_object *self) {
  while (self->waiting) {
    Py_BEGIN_ALLOW_THREADS;
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    Py_END_ALLOW_THREADS;
  }
}

void core_works_end(core_works *works, const gb_group *group) {
  if (!works) return;
  core_works *at = works->next;
  while (at != works) {
    work_object *self =
        (work_object *)(void *)((char *)at - offsetof(work_object, link));
    if (group && self->group != group) {
      at = at->next;
      continue;
    }
    Py_INCREF(self);
    await_waiters(self);
    gb_status status;
    gb_error error;
    int ended = has_ended(self, &status, &error);
    self->failed = !ended || status != GB_OK;
    self->seq = gb_work_seq(self->work);
    gb_work_release(self->work);
    self->work = NULL;
    unlink_work(self);
    Py_DECREF(self);
    at = works->next; /* others may have gone meanwhile */
  }
}

/* The answer of one that was given back when its group was closed. */
static PyObject *answer_closed(work_object *self) {
  if (!self->failed) Py_RETURN_NONE;
  PyErr_SetString(PyExc_RuntimeError,
                  "the group was closed before this call was done: wait for "
                  "every call before the group or the job is ended");
  return NULL;
}

static PyObject *work_wait(PyObject *self, PyObject *arg) {
  gb_work *work = ((work_object *)self)->work;
  unsigned long long timeout_ms = PyLong_AsUnsignedLongLong(arg);
  if (PyErr_Occurred()) return NULL;
  if (!work) return answer_closed((work_object *)self);
  gb_status status;
  gb_error error;
  ((work_object *)self)->waiting++;
  Py_BEGIN_ALLOW_THREADS;
  status = gb_work_wait(work, timeout_ms, &error);
  Py_END_ALLOW_THREADS;
  ((work_object *)self)->waiting--;
  if (status == GB_OK) status = check_group((work_object *)self, &error);
  if (status != GB_OK) return core_raise(state_of(self), &error);
  Py_RETURN_NONE;
}

static PyObject *work_test(PyObject *self, PyObject *unused) {
  work_object *object = (work_object *)self;
  gb_error error;
  gb_status status = GB_OK;
  int ended = !object->work || has_ended(object, &status, &error);
  if (!ended && status != GB_OK) return core_raise(state_of(self), &error);
  return PyBool_FromLong(ended);
}

static PyObject *work_seq(PyObject *self, PyObject *unused) {
  work_object *object = (work_object *)self;
  return PyLong_FromLongLong(object->work ? gb_work_seq(object->work)
                                          : object->seq);
}

static PyObject *work_source(PyObject *self, PyObject *unused) {
  return PyLong_FromLong(gb_work_source(((work_object *)self)->work));
}

static void work_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  unlink_work((work_object *)self);
  gb_work_release(((work_object *)self)->work);
  PyObject_Free(self);
  Py_DECREF(type);
}

static PyMethodDef work_methods[] = {
    {"wait", work_wait, METH_O,
     "wait(timeout_ms): blocks until done, 0: no limit of its own. Raises\n"
     "TimeoutError, or the call's own failure."},
    {"test", work_test, METH_NOARGS,
     "True once it completed, in success or failure. Never blocks."},
    {"seq", work_seq, METH_NOARGS,
     "The sequence number the call took, -1 until it started."},
    {"source", work_source, METH_NOARGS,
     "Group rank that a completed receive came from, else -1."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot work_slots[] = {
    {Py_tp_doc, "Handle of one async call."},
    {Py_tp_methods, work_methods},
    {Py_tp_dealloc, work_dealloc},
    {0, NULL}};

static PyType_Spec work_spec = {
    .name = "gpubridge._core.Work",
    .basicsize = sizeof(work_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = work_slots,
};

int core_add_work(PyObject *module, core_state *state) {
  state->work_type =
      (PyTypeObject *)PyType_FromModuleAndSpec(module, &work_spec, NULL);
  if (!state->work_type) return -1;
  return PyModule_AddType(module, state->work_type);
}
