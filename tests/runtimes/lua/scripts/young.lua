-- SPDX-License-Identifier: GPL-2.0-or-later
-- Old objects of every kind get new values, among garbage: minor cycles must find these.
local N <const>, ROUNDS <const> = 60, 12

local function garbage(n)
  for i = 1, n do local t = {i, tostring(i), function() return i end} end
end

-- A variable of a suspended coroutine that closures share, and one that debug.setlocal() sets.
local function body(first)
  local shared, plain = first, first
  coroutine.yield(function(v) shared = v end, function() return shared end)
  while true do shared, plain = coroutine.yield(shared, plain) end
end

local array, hash, byobject, metas = {}, {}, {}, {}
local setters, getters, threads, closed = {}, {}, {}, {}
local keys = {}
local weakvalues = setmetatable({}, {__mode = "v"})
local weakkeys = setmetatable({}, {__mode = "k"})
local both = setmetatable({}, {__mode = "kv"})
for i = 1, N do
  array[i], hash["k" .. i], keys[i], metas[i] = {0}, {0}, {i}, setmetatable({}, {__index = {0}})
  threads[i] = coroutine.create(body)
  local _, set, get = coroutine.resume(threads[i], {0})
  setters[i], getters[i] = set, get
  local up = {0}
  closed[i] = {function(v) up = v end, function() return up end}
end
local late, bykey = {}, {}

-- The variable becomes old while it is on the stack, and leaves it with a new value.
local function leave(n)
  local value
  local function get() return value end
  garbage(700)
  value = {n}
  return get
end
garbage(3000)	-- all that is old now

for round = 1, ROUNDS do
  for i = 1, N do
    local new = {round * 1000 + i}
    array[i] = {new[1]}
    hash["k" .. i] = {new[1]}
    hash["k" .. round .. "/" .. i] = {new[1]}	-- new keys move nodes
    byobject[keys[i]] = {new[1]}
    setmetatable(metas[i], {__index = {new[1]}})
    setters[i]({new[1]})
    closed[i][1]({new[1]})
    weakvalues[i] = keys[i]
    weakkeys[keys[i]] = {new[1]}
    weakkeys[{}] = {new[1]}
    both[keys[i]] = keys[i]
    both[{}] = {}
    debug.setlocal(threads[i], 1, 3, {new[1]})
    bykey[new] = new[1]
    new = nil
    if i % 20 == 0 then late[i] = leave(round) end
    garbage(10)
  end
  garbage(500)
  for i = 1, N do
    local want = round * 1000 + i
    assert(array[i][1] == want and hash["k" .. i][1] == want)
    assert(hash["k" .. round .. "/" .. i][1] == want and byobject[keys[i]][1] == want)
    assert(metas[i][1] == want and getters[i]()[1] == want and closed[i][2]()[1] == want)
    assert(weakvalues[i] == keys[i] and weakkeys[keys[i]][1] == want and both[keys[i]] == keys[i])
    local _, v = debug.getlocal(threads[i], 1, 3)
    assert(v[1] == want)
    assert(i % 20 > 0 or late[i]()[1] == round)
    -- a coroutine that runs gets new values, and gives them back
    if round > 1 then
      local ok, a, b = coroutine.resume(threads[i], {want}, {want + 1})
      assert(ok and (round == 2 or (a[1] > 0 and b[1] > 0)))
    end
  end
end

local sum = 0
for k, v in pairs(bykey) do
  assert(k[1] == v)
  sum = sum + v
end
print(sum)

-- deep stacks, and errors that leave them, with new values on them
local function deep(n)
  local t = {n}
  garbage(1)
  if n == 0 then error({"bottom"}) end
  deep(n - 1)
  return t
end
for i = 1, 20 do
  local co = coroutine.create(deep)
  local ok, e = coroutine.resume(co, 100 + i)
  assert(not ok and e[1] == "bottom")
  ok, e = pcall(deep, 100 + i)
  assert(not ok and e[1] == "bottom")
end

-- finalizers of objects that die young, some of which come back
local count, back = 0, {}
for i = 1, 2000 do
  setmetatable({i, {i}}, {__gc = function(o)
    assert(o[1] == o[2][1])
    count = count + 1
    if i % 100 == 0 then back[#back + 1] = o end
  end})
end
collectgarbage()
collectgarbage()
print(count, #back, back[1][1] == back[1][2][1])

-- prototypes, which are built while they become old
local source = {"local t = {}"}
for i = 1, 40 do
  source[#source + 1] = ("t[%d] = function(a) local x%d = 'constant %d' garbage(1) return x%d .. a end")
    :format(i, i, i, i)
end
source = table.concat(source, "\n") .. "\nreturn t"
for round = 1, 30 do
  local f = load(source, "chunk" .. round, "t", {garbage = garbage})
  if round % 2 == 0 then
    f = load(string.dump(f), "dump", "b", {garbage = garbage})
  end
  local t = f()
  garbage(50)
  assert(#t == 40 and t[40]("!") == "constant 40!" and t[1]("?") == "constant 1?")
end
print("done")
