import threading

import redis

from say import PORT, attempt, brief, say

store = redis.Redis(port=PORT, socket_timeout=20)
say("ping", store.ping())
say("set", store.set("a", "ü"), store.get("a").decode())
large = bytes(range(256)) * 40_000
store.set("large", large)
say("large", brief(store.get("large")))
pipe = store.pipeline(transaction=False)
for number in range(5000):
    pipe.set(f"k{number}", number)
    pipe.get(f"k{number}")
say("pipeline", sum(int(value) for value in pipe.execute()[1::2]))
with store.pipeline() as pipe:
    say("transaction", pipe.multi() or pipe.incr("n").incr("n").execute())
ears = redis.Redis(port=PORT).pubsub()
ears.subscribe("news")
ears.get_message(timeout=10)
say("published", store.publish("news", "hello"))
say("heard", ears.get_message(timeout=10)["data"])
got = []
waiting = threading.Thread(target=lambda: got.append(redis.Redis(port=PORT).blpop("queue", 15)))
waiting.start()
store.rpush("queue", "thing")
waiting.join()
say("waited", got)
attempt("wrong kind", lambda: store.lpush("a", "x"))
say("script", store.eval("return redis.call('incrby', KEYS[1], ARGV[1])", 1, "n", 40))
for number in range(3000):
    store.xadd("stream", {"n": number})
say("stream", len(store.xrange("stream")))
say("keys", sum(1 for _ in store.scan_iter("k*", count=100)))
crowd = [threading.Thread(target=lambda: [redis.Redis(port=PORT).incr("crowd") for _ in range(20)]) for _ in range(10)]
[one.start() for one in crowd]
[one.join() for one in crowd]
say("crowd", store.get("crowd"))
