import sys

import pymysql

from say import PORT, attempt, brief, say


def connect(**more):
    return pymysql.connect(host="127.0.0.1", port=PORT, user="user", password="word", database="d", read_timeout=20, **more)


base = connect()
cursor = base.cursor()
cursor.execute("select version() like '%MariaDB%', @@max_allowed_packet > 1000000")
say("server", cursor.fetchall())
cursor.execute("create table t (id int primary key auto_increment, text varchar(200) character set utf8mb4, data longblob)")
say("insert", cursor.executemany("insert into t (text, data) values (%s, %s)", [(f"ü{n}", bytes([n % 256]) * n) for n in range(1000)]))
base.commit()
cursor.execute("select count(*), sum(length(data)), min(text) from t")
say("sum", cursor.fetchall())
blob = bytes(range(256)) * 40_000
cursor.execute("insert into t (text, data) values ('large', %s)", (blob,))
cursor.execute("select data from t where text = 'large'")
say("large", brief(cursor.fetchone()[0]))
attempt("syntax", lambda: cursor.execute("selekt"))
attempt("duplicate", lambda: cursor.execute("insert into t (id) values (1)"))
base.rollback()
cursor.execute("select count(*) from t")
say("rolled back", cursor.fetchall())
stream = connect(cursorclass=pymysql.cursors.SSCursor).cursor()
stream.execute("select a.id, b.id from t a, t b limit 100000")
say("rows", sum(1 for _ in stream))
attempt("wrong word", lambda: pymysql.connect(host="127.0.0.1", port=PORT, user="user", password="no"))
others = [connect() for _ in range(20)]
say("crowd", sum(other.cursor().execute("select 1") for other in others))
victim = connect()
cursor.execute(f"kill {victim.thread_id()}")
try:
    victim.cursor().execute("select 1")
except pymysql.err.OperationalError as error:
    # Whether the end or the reset is met first is chance.
    say("killed", error.args[0])
with open("rows.csv", "w") as file:
    file.writelines(f"row{n}\n" for n in range(5000))
local = connect(local_infile=True)
say("loaded", local.cursor().execute("load data local infile 'rows.csv' into table t (text)"))
