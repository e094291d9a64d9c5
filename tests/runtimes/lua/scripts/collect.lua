-- SPDX-License-Identifier: GPL-2.0-or-later
-- collectgarbage().
print(collectgarbage("isrunning"), collectgarbage("stop"), collectgarbage("isrunning"))
local w = setmetatable({}, {__mode = "v"})
w[1] = {}
for i = 1, 200000 do local _ = {i} end
print(w[1] ~= nil)
print(collectgarbage("restart"), collectgarbage("isrunning"))
print(collectgarbage(), w[1])
print(collectgarbage("generational"), collectgarbage("incremental"), collectgarbage("incremental"))
print(collectgarbage("setpause", 150), collectgarbage("setpause", 200))
print(collectgarbage("setstepmul", 200), collectgarbage("setstepmul", 100))
print(pcall(collectgarbage, "nonsense"))
local before = collectgarbage("count")
local keep = {}
for i = 1, 100 do keep[i] = ("x"):rep(100000 + i) end
print(collectgarbage("count") - before > 9000)
keep = nil
collectgarbage()
print(collectgarbage("count") - before < 1000)
-- in a finalizer it does nothing
local inner
setmetatable({}, {__gc = function() inner = collectgarbage() end})
collectgarbage()
print(inner)
-- warnings for errors in finalizers
warn("@on")
setmetatable({}, {__gc = function() error("expected", 0) end})
collectgarbage()
