/* gpubridge._core.Work: the handle of one async call. */
#include "core.h"

typedef struct work_object {
  PyObject_HEAD
  gb_work *work;
} work_object;

static core_state *state_of(PyObject *self) {
  return PyType_GetModuleState(Py_TYPE(self));
}

PyObject *core_work_new(core_state *state, gb_work *work) {
  work_object *self = PyObject_New(work_object, state->work_type);
  if (self)
    self->work = work;
  else
    gb_work_release(work);
  return (PyObject *)self;
}

static PyObject *work_wait(PyObject *self, PyObject *arg) {
  gb_work *work = ((work_object *)self)->work;
  unsigned long long timeout_ms = PyLong_AsUnsignedLongLong(arg);
  if (PyErr_Occurred()) return NULL;
  gb_status status;
  gb_error error;
  Py_BEGIN_ALLOW_THREADS;
  status = gb_work_wait(work, timeout_ms, &error);
  Py_END_ALLOW_THREADS;
  if (status != GB_OK) return core_raise(state_of(self), &error);
  Py_RETURN_NONE;
}

static PyObject *work_test(PyObject *self, PyObject *unused) {
  int done = 0;
  gb_error error;
  gb_status status = gb_work_test(((work_object *)self)->work, &done, &error);
  if (status != GB_OK && !done) return core_raise(state_of(self), &error);
  return PyBool_FromLong(done);
}

static PyObject *work_seq(PyObject *self, PyObject *unused) {
  return PyLong_FromLongLong(gb_work_seq(((work_object *)self)->work));
}

static PyObject *work_source(PyObject *self, PyObject *unused) {
  return PyLong_FromLong(gb_work_source(((work_object *)self)->work));
}

static void work_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
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
