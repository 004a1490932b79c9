// The questions: each answer with its reason, and where in the lab it can be seen. `right` is the
// index of the right answer.

export const QUESTIONS = [
  {
    id: "burst",
    question: "Which of these allows a burst, of a size that you choose, and holds the long-run rate?",
    answers: [
      ["Fixed window", "It lets through a burst of a whole window’s limit, whether you want that or not, and twice that around a boundary. The size is not yours to choose."],
      ["Token bucket", "Its capacity is the burst and its refill is the rate, and the two are set apart: burst + rate × time is all that it ever admits."],
      ["Leaky bucket, as a queue", "It does the opposite: what comes at once is sent on evenly spaced, so that a burst becomes a delay."],
      ["Sliding log", "It never admits more than the limit in any period, so there is no burst above the rate to be set."],
    ],
    right: 1,
    see: ["See ten at once, a second, ten again", "bucket?capacity=5&refill=2&do=b10_w1_b10&clock=paused"],
  },
  {
    id: "second",
    question: "A token bucket has capacity 5 and refill 2 a second. Ten requests come at once, and exactly a second later ten more. How many of the second ten are admitted?",
    answers: [
      ["None", "The first ten took all five tokens, but in a second two came back."],
      ["Exactly 2", "Five tokens went to the first ten. One second at 2 a second brings two whole tokens back, and no part of a third: the arithmetic is in whole numbers."],
      ["5", "A bucket of 5 that refills at 2 a second is full again after 2.5 seconds, not after one."],
      ["7: 5 and 2", "The five were spent by the first ten. A token is spent once."],
    ],
    right: 1,
    see: ["See it, with the arithmetic of each answer", "bucket?capacity=5&refill=2&do=b10_w1_b10&clock=paused"],
  },
  {
    id: "boundary",
    question: "A fixed window of 10 a second is sent 10 requests just before a boundary and 10 just after it. How many does it admit within a tenth of a second?",
    answers: [
      ["10", "That is what the limit says, but the count begins anew at the boundary."],
      ["15", "A window knows nothing of the one before it, so nothing is held back."],
      ["20: twice the limit", "Both tens are within their own window. Sliding windows and logs were made because of this; a token bucket bounds it by its burst."],
    ],
    right: 2,
    see: ["See twice the limit pass the fixed window", "compare?preset=window_boundary"],
  },
  {
    id: "status",
    question: "Which status does a throttled request normally get?",
    answers: [
      ["403 Forbidden", "That says: not you, and not later either. A throttled client may come again."],
      ["429 Too Many Requests", "RFC 6585 made it for this: the client sent too many requests in a span of time. Retry-After tells it when to come again."],
      ["503 Service Unavailable", "That says that the server is in trouble, whoever asks. It is right for shedding load; a limit is about one client. (NGINX’s limit_req sends it unless told otherwise.)"],
      ["200, with an error in the body", "Clients, caches and dashboards would count it as a success."],
    ],
    right: 1,
    see: ["See the 429 as it goes out", "bucket?capacity=1&refill=1&do=b2&clock=paused"],
  },
  {
    id: "retry-after",
    question: "What must Retry-After promise?",
    answers: [
      ["That the bucket is full again by then", "That is more than the client needs: it would wait for five tokens to spend one. When the bucket is full is told by the Reset field."],
      ["That the same request, sent then and not sooner, is admitted if nobody else spends first", "So it is rounded up to whole seconds, never down: a client that obeys must not be denied for coming half a second early."],
      ["Nothing; it is a hint", "Then clients learn to ignore it, and come back when they like."],
    ],
    right: 1,
    see: ["See a wait of a third of a second rounded up to 1", "bucket?capacity=3&refill=3&do=b4&clock=paused"],
  },
  {
    id: "postpone",
    question: "An impatient client asks 20 times a second where 2 a second are allowed. What should its denied requests cost it?",
    answers: [
      ["Each one puts off the next admission: that teaches it", "Then a client that retries in good faith may never be admitted again, and Retry-After was a lie: it was true only until the next attempt."],
      ["Nothing: it gets its 2 a second", "A denied request changes nothing that is stored. Whoever wants a punishment writes one down as a rule of its own (a penalty), with an end that is told."],
    ],
    right: 1,
    see: ["See 2 of 20 a second go on being admitted", `bucket?capacity=1&refill=2&do=b1_${"w0.05_b1_".repeat(60)}w0.05&clock=paused`],
  },
  {
    id: "atomic",
    question: "Several gateways count in one Redis. Why must “read the count, compare, write it back” be one atomic step?",
    answers: [
      ["Because Redis is slow", "Speed is no reason: two slow steps admit too much just as two fast ones do, only more often."],
      ["Because between one gateway’s read and its write another may read the same count, and both spend the same token", "With 20 gateways and one token left, up to 20 requests pass. A script (or a function) in Redis checks and decrements in one step, by Redis’s own clock."],
      ["Because keys could expire between the two", "That can happen and is easily mended; the lost update is what breaks the limit."],
    ],
    right: 1,
    see: ["See 20 gateways and one Redis hold one limit", "cluster?preset=over"],
  },
  {
    id: "divide",
    question: "Why are 20 gateways that each enforce a twentieth of the limit not one limit?",
    answers: [
      ["They are: 20 × 1/20 = 1", "Only when each gateway gets exactly a twentieth of each client’s requests. Balancers do not promise that."],
      ["A client whose connection stays on one gateway gets a twentieth of what was promised", "And when a gateway dies the total shrinks, when one is added it grows. It is a fair fallback while the shared store is down, and no more."],
      ["Their clocks differ", "Clocks do differ, but a refill is reckoned from spans of time, where a clock’s offset cancels out."],
    ],
    right: 1,
    see: ["See each fall back to its own piece when Redis dies", "cluster?preset=dies"],
  },
  {
    id: "store-down",
    question: "The store of the counts is down. What should a limiter do?",
    answers: [
      ["Deny everything: a limit is a limit", "Then the limiter is the outage. It can be right for a login that must not be guessed at, so it can be chosen for a policy."],
      ["Wait until the store is back", "Every request would wait, connections would pile up, and the gateway would fall with the store."],
      ["Answer in time, by a rule chosen beforehand: go on with a local piece of the limit, allow, or deny", "Each request waits a few milliseconds at most, and none at all once the breaker is open. What then holds is written down for each policy, not found out in the night."],
    ],
    right: 2,
    see: ["See a breaker open, and the fallback take over", "cluster?preset=dies"],
  },
  {
    id: "storm",
    question: "A thousand clients are denied in the same instant, and each comes again. What keeps them from coming all at once, again and again?",
    answers: [
      ["A stricter limit", "It denies more of them, and they come again all the same."],
      ["Trying again at once", "Then each denial is an attempt more: the traffic multiplies, and hardly one more is admitted."],
      ["Waiting as told, and then a random while more (jitter)", "The wait keeps them from knocking in vain, and the drawn part spreads their return over time, so that the limit can admit them one after the other."],
    ],
    right: 2,
    see: ["See the storm, and what jitter makes of it", "compare?preset=retry_jitter"],
  },
];
