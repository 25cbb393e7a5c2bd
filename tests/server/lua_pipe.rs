//! `ngx.pipe`: programs that scripts run while their loop goes on.

use weir_tests::skip_on_oracle;

use crate::lua::lua;

#[test]
fn a_script_runs_programs_and_talks_to_them() {
    if skip_on_oracle("Debian's nginx lacks a patch that ngx.pipe wants") {
        return;
    }
    let Some(site) = lua(r##"default_type text/plain;
        server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
            local pipe = require "ngx.pipe"
            local function told(...)
                local all = { ... }
                for n = 1, select("#", ...) do all[n] = tostring(all[n]) end
                ngx.say(table.concat(all, " "))
            end
            local echo = assert(pipe.spawn({ "cat" }))
            told(echo:write("one\ntwo"))
            told(echo:shutdown("stdin"))
            told(echo:stdout_read_line())
            told(echo:stdout_read_bytes(2))
            told(echo:stdout_read_line())
            told(echo:write("x"))
            told(echo:wait())
            told(echo:wait())
            -- A shell, the two ways that a program may end, and what it complains.
            local shell = assert(pipe.spawn("echo no >&2; exit 3"))
            told(shell:stderr_read_all())
            told(shell:wait())
            local both = assert(pipe.spawn("echo out; echo err >/dev/stderr", { merge_stderr = true }))
            told((both:stdout_read_all():gsub("\n", " ")), both:stderr_read_all())
            local sleeper = assert(pipe.spawn({ "sleep", "1000" }, { stdout_read_timeout = 20, wait_timeout = 20 }))
            told(sleeper:stdout_read_any(10))
            told(sleeper:wait())
            told(sleeper:kill(12345))
            told(sleeper:kill(9))
            sleeper:set_timeouts(nil, nil, nil, 10000)
            told(sleeper:wait())
            -- One that is not there ends as a child does that cannot become it.
            told(assert(pipe.spawn({ "/there/is/none" })):wait())
            told(assert(pipe.spawn("echo $A", { environ = { "A=b" } })):stdout_read_line())
            told(pcall(pipe.spawn, {}))
            told(pcall(pipe.spawn, "true", { environ = { "x" } }))
        } } }"##)
    else {
        return;
    };
    assert_eq!(
        site.start().get("/").expect(200).text(),
        "7\ntrue\none\ntw\nnil closed o\nnil closed\ntrue exit 0\nnil exited\nno\n\nfalse exit 3\n\
         out err  nil merged to stdout\nnil timeout \nnil timeout\nnil invalid signal\ntrue\nfalse signal 9\n\
         false exit 1\nb\nfalse bad args arg: non-empty table expected\n\
         false bad value at index 1 of environ option: 'name=[value]' format expected, got 'x'\n"
    );
}
