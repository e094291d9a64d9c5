-- SPDX-License-Identifier: GPL-2.0-or-later
-- Coroutines: stacks that only they refer to, open upvalues, errors, closing.
local function gen(n)
  return coroutine.wrap(function() for i = 1, n do coroutine.yield({i, {i}}) end end)
end
local sum = 0
for round = 1, 30 do for o in gen(300) do sum = sum + o[2][1] end end
print(sum)

-- many suspended ones, whose stacks hold the only reference to objects
local cos = {}
for i = 1, 500 do
  cos[i] = coroutine.create(function(a)
    local t = {a}
    while true do
      local b = coroutine.yield(t)
      t = {b, t[1]}
    end
  end)
end
for round = 1, 40 do
  for i, co in ipairs(cos) do
    local ok, t = coroutine.resume(co, {round * i})
    assert(ok and t[1][1] == round * i and (round == 1 or t[2][1] == (round - 1) * i))
  end
end
print("suspended", coroutine.status(cos[1]))

-- dead and unreachable ones are collected with what they hold
local weak = setmetatable({}, {__mode = "v"})
for i = 1, 100 do
  local o = {}
  weak[i] = o
  local co = coroutine.create(function() local mine = o coroutine.yield() return mine end)
  coroutine.resume(co)
  if i % 2 == 0 then weak["co" .. i] = co end
end
collectgarbage()
local n = 0
for _ in pairs(weak) do n = n + 1 end
print(n)

-- open upvalues of a suspended coroutine, written from outside
local function counter()
  local n, boxes = 0, {}
  local co = coroutine.create(function()
    local x = {0}
    boxes.get, boxes.set = function() return x end, function(v) x = v end
    coroutine.yield()
    n = x[1]
  end)
  coroutine.resume(co)
  return co, boxes, function() return n end
end
local list = {}
for i = 1, 200 do list[i] = {counter()} end
for round = 1, 20 do
  for i, c in ipairs(list) do c[2].set({c[2].get()[1] + i}) end
  local waste = {} for i = 1, 1000 do waste[i] = {i} end
end
local total = 0
for i, c in ipairs(list) do coroutine.resume(c[1]) total = total + c[3]() assert(c[3]() == 20 * i) end
print(total)

-- nested, with errors through pcall, and yields across pcall
local function nest(depth)
  if depth == 0 then coroutine.yield({"deep"}) error({"thrown"}) end
  local co = coroutine.create(nest)
  local ok, v = coroutine.resume(co, depth - 1)
  coroutine.yield(v)
  local ok2, e = coroutine.resume(co)
  error(e)
end
local co = coroutine.create(nest)
print(select(2, coroutine.resume(co, 20))[1])
print(select(2, coroutine.resume(co))[1])
print(coroutine.resume(coroutine.create(function()
  local ok, e = pcall(function() local t = {coroutine.yield(1)} error({t}) end)
  return ok, #e
end)))

-- to-be-closed variables
do
  local log = {}
  local function closer(name)
    return setmetatable({}, {__close = function(_, e) log[#log + 1] = name .. ":" .. tostring(e) end})
  end
  local co = coroutine.create(function()
    local a <close> = closer("a")
    local b <close> = closer("b")
    coroutine.yield()
  end)
  coroutine.resume(co)
  print(coroutine.close(co))
  print(pcall(function() local c <close> = closer("c") error("x", 0) end))
  print(table.concat(log, " "))
end

-- debug on a suspended thread
local hidden = coroutine.create(function() local name = {"local"} coroutine.yield() return name[1] end)
coroutine.resume(hidden)
local name, value = debug.getlocal(hidden, 1, 1)
print(name, value[1])
debug.setlocal(hidden, 1, 1, {"changed"})
collectgarbage()
print(select(2, coroutine.resume(hidden)))
