//! The `ngx` API, by subject.

mod output;
mod variables;

use std::rc::Rc;

use crate::luajit::stack::GLOBALS;
use crate::luajit::{Answer, Failure, Native, Stack};
use crate::vm::Vm;

/// The outcome of a function of ours.
pub(crate) type Called = Result<Answer, Failure>;

/// One value.
pub(crate) const ONE: Called = Ok(Answer::Values(1));
/// No value.
pub(crate) const NONE: Called = Ok(Answer::Values(0));

/// Functions by name.
pub(crate) type Functions = &'static [(&'static str, Native)];

/// Puts the API into a new machine.
pub(crate) fn install(vm: &Rc<Vm>) {
    let stack = vm.state.stack();
    stack.push_table(0, 64);
    for functions in [output::FUNCTIONS] {
        add(&stack, functions);
    }
    variables::install(&stack);
    stack.set(GLOBALS, "ngx");
}

/// Adds functions to the table on top.
pub(crate) fn add(stack: &Stack, functions: Functions) {
    for (name, function) in functions {
        stack.push_native(*function);
        stack.set(-2, name);
    }
}
